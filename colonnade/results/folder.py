"""A run's folder: made once, reopened to resume, never replaced without permission.

config.toml      the resolved configuration, beside copies of the user's own files
run.json         which configuration this is, and how often it was started
lock             the process that works here has it locked
ledger.jsonl     every message
checkpoints/     until the run is finished
weights.part/    where parties come and go: the models of the newest checkpoint
weights/         from then on
result.json      what came out, also of a run that failed
replaced/        the older run that this one replaces, until this one is finished
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from colonnade import config as configuration
from colonnade.config import Config
from colonnade.errors import InputError, RunError
from colonnade.plugin import Rule, approved, pinned
from colonnade.results.result import read_json
from colonnade.role.party import Party
from colonnade.wire import store

REPLACED = "replaced"
SAVED = {"weights", "shape", "view", "preparation", "columns"}  # of a party's trained models
FORMAT = 2  # of what is needed to go on with a run: checkpoints, manifest, names of the state


def create(folder: Path, settings: Config, overwrite: bool, **more: Any) -> int:
    """A new folder; an older run in its place goes only if it may. Returns attempt 1."""
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / "run.json").exists():
                raise RunError(f"{folder} exists and is not a run: choose another --out")
            if not overwrite:
                raise RunError(
                    f"{folder} holds an older run: choose another --out, or replace it with "
                    "--overwrite"
                )
            with alone(folder):
                _put_into_new(folder)
        folder.mkdir(parents=True, exist_ok=True)
        store.write_text(configuration.dumps(settings), folder / "config.toml")
        for source in settings.code():  # so that the folder can be read without them
            (folder / source.path.name).write_bytes(source.content)
        mark(folder, settings, 1, **more)
        (folder / "ledger.jsonl").touch()
    except OSError as error:
        raise RunError(f"{folder} cannot be made: {error.strerror}; choose another --out") from None
    return 1


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Two processes in one folder would break its ledger; the lock goes with the process."""
    try:
        opened = (folder / "lock").open("a+")
    except OSError as error:
        raise RunError(
            f"{folder / 'lock'} cannot be opened: {error.strerror}. It is to be a file, and an "
            "empty one will do: remove what is there, or choose another --out"
        ) from None
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise RunError(
                f"{folder} is in use by process {file.read().strip() or 'of somebody'}. Stop that "
                "one first, or choose another --out"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _put_into_new(folder: Path) -> None:
    """A new folder with the run in it. If that has never ended, with the one that it replaced."""
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    run = folder.rename(aside / "run")
    folder.mkdir()
    (run / REPLACED if (run / REPLACED).exists() else run).rename(folder / REPLACED)
    shutil.rmtree(aside, ignore_errors=True)


def finish(folder: Path) -> None:
    """The run is whole: the older one that it replaces may go."""
    shutil.rmtree(folder / REPLACED, ignore_errors=True)


def withdraw(folder: Path) -> None:
    """As if the run had never been made."""
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    run = folder.rename(aside / "run")
    if (run / REPLACED).exists():
        (run / REPLACED).rename(folder)
    shutil.rmtree(aside)


def tell(error: BaseException, folder: Path, note: str) -> None:
    """Say with an error what to do about its run, and where the older one is."""
    error.add_note(note)
    if (folder / REPLACED).exists():
        error.add_note(f"the older run, that it was to replace, lies in {folder / REPLACED}")


def free(name: str, overwrite: bool) -> Path:
    """runs/<name>, or the first numbered one that is free: older results stay where they are."""
    folder, number = Path("runs") / name, 2
    while folder.exists() and not overwrite:
        folder, number = Path("runs") / f"{name}-{number}", number + 1
    return folder


def reopen(folder: Path, settings: Config) -> dict[str, Any]:
    """The manifest of a stopped run of the very same configuration."""
    manifest = check_format(folder)
    if (folder / "weights").exists():
        raise RunError(f"{folder} is finished: there is nothing to resume")
    if manifest.get("config_sha256") != settings.sha256():
        if "party" in manifest:
            raise RunError(
                f"{folder} was begun with another federation file, method file or network file. Go "
                "on with those, or give another --out for a new run, at every party"
            )
        raise RunError(
            f"{folder} was made by another configuration or method file. To go on with its own: "
            f"{command_for(folder)}"
        )
    if not (folder / "ledger.jsonl").is_file():
        raise RunError(f"{folder} has lost its ledger.jsonl, which says what was sent before")
    if (folder / "checkpoints").is_file():
        raise RunError(
            f"{folder / 'checkpoints'} is a file, and checkpoints belong there: bring the folder "
            "back, or remove the file and begin again from nothing"
        )
    return manifest


def never_began(folder: Path) -> bool:
    """Whether it is a party's, and no run has begun in it: nobody came, or somebody refused."""
    try:
        manifest = read_json(folder / "run.json")
    except RunError:  # damaged: whoever goes on in it is told
        return False
    return "party" in manifest and not manifest.get("run")


def command_for(folder: Path) -> str:
    """What goes on with a stopped run, as it is typed: for errors."""
    manifest = read_json(folder / "run.json")
    whole = folder.parent.parent  # of a run whose parties have processes of their own
    if "party" not in manifest:
        return f"colonnade run --resume {shlex.quote(str(folder))}"
    if folder.parent.name == "parties" and (whole / "run.json").exists():
        return f"colonnade run --resume {shlex.quote(str(whole))}"
    name, out = shlex.quote(str(manifest["party"])), shlex.quote(str(folder))
    return f"colonnade party --name {name} --out {out} --federation FILE …"


def check_whole(folder: Path) -> None:
    """Whether `colonnade run --resume` may go on here: one party alone cannot."""
    manifest = check_format(folder)
    if "party" in manifest:
        raise RunError(
            f"{folder} is the folder of one party, '{manifest['party']}', and holds a part of a "
            f"run. What goes on with it: {command_for(folder)} (with the options it was begun "
            "with). Nothing was changed"
        )


def check_of_all(folder: Path) -> None:
    """Whether the folder has the networks of all parties: those of one alone predict nothing."""
    file = folder / "run.json"  # very old runs have none
    name = read_json(file).get("party") if file.exists() else None
    if name is not None:
        raise RunError(
            f"{folder} is the folder of one party, '{name}'. All parties predict together, each "
            f"with: colonnade party --predict {shlex.quote(str(folder))} --name {name} "
            "--federation FILE --data FILE --policy FILE"
        )


def check_format(folder: Path) -> dict[str, Any]:
    """The manifest of a run that this version can go on with; older ones it only reads."""
    manifest = read_json(folder / "run.json")
    if not isinstance(manifest.get("attempt"), int):
        raise RunError(f"{folder / 'run.json'} is damaged: it does not say which attempt this is")
    if manifest.get("format", 1) != FORMAT:
        raise RunError(
            f"{folder} was made by another version of Colonnade, and this one cannot go on from "
            f"its checkpoints. Train it again as a new run, or resume it with the version that "
            f"began it; `colonnade report {shlex.quote(str(folder))}` shows what was reached"
        )
    return manifest


def settings_of(folder: Path) -> Config:
    """The configuration of a run, to use its models; of another version's, if it still holds."""
    try:
        return configuration.load(folder / "config.toml", rule=rule_of(folder))
    except InputError as error:
        if read_json(folder / "run.json").get("format", 1) == FORMAT:
            raise
        raise RunError(
            f"{folder} was made by another version of Colonnade, and its config.toml is not valid "
            "in this one, so its models cannot be used. Use the version that made it, or train "
            f"it again. {error}"
        ) from None


def rule_of(folder: Path) -> Rule:
    """The rule for code in a run folder: the one it was made with, if this user has approved it."""
    manifest = folder / "run.json"
    pins = read_json(manifest).get("code") if manifest.exists() else None
    if not isinstance(pins, dict):  # of an older version: the user's approval alone decides
        return approved
    return pinned(pins, str(manifest))


def mark(folder: Path, settings: Config, attempt: int, **more: Any) -> None:
    """Say in run.json which attempt this is."""
    manifest = {
        "format": FORMAT,
        "config_sha256": settings.sha256(),
        "code": settings.pins(),
        "attempt": attempt,
        **more,
    }
    store.write_text(json.dumps(manifest), folder / "run.json")


def remark(folder: Path, **more: Any) -> None:
    """Say more in run.json, and leave the rest of it as it is."""
    store.write_text(json.dumps(read_json(folder / "run.json") | more), folder / "run.json")


def seconds_so_far(folder: Path) -> float:
    """Of the attempts that could still write a result."""
    if not (folder / "result.json").exists():
        return 0.0
    timing = read_json(folder / "result.json").get("timing", {})
    return float(timing.get("seconds_total", 0.0))


def refresh_weights(party: Party, run: Path, **more: Any) -> None:
    """Put a party's present models into weights.part.

    A process may die in the middle of this: one whole copy always lies there or in weights.next.
    """
    part, following = run / "weights.part", run / "weights.next"
    if newest_weights(run, party.name) == following:  # died between the two steps below
        shutil.rmtree(part, ignore_errors=True)
        following.rename(part)
    shutil.rmtree(following, ignore_errors=True)
    save_weights(party, following, **more)
    if part.exists():
        shutil.rmtree(part)
    following.rename(part)


def newest_weights(run: Path, party: str) -> Path | None:
    """The folder with a party's models: of the finished run, or of a training under way."""
    for name in ("weights", "weights.part", "weights.next"):
        files = [run / name / f"{party}.{end}" for end in ("json", "safetensors")]
        if all(file.exists() for file in files):
            return run / name
    return None


def deciding(decision: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is saved beside the models of a party that decides by more than the best class."""
    return {} if decision is None else {"decision": dict(decision)}


def load_weights(place: Path, party: str, again: str) -> dict[str, Any]:
    """What `save_weights` wrote; `again` says how to train again, should it be damaged."""
    try:
        saved = store.load(place / party)
        if not isinstance(saved, dict) or not saved.keys() >= SAVED:
            raise RunError(f"{place / party}.json is damaged: it holds no models")
    except RunError as error:
        raise RunError(
            f"{error}. Nobody predicts with damaged models: bring those of '{party}' back from a "
            f"backup, or {again}"
        ) from error
    return saved


def save_weights(party: Party, folder: Path, **more: Any) -> None:
    """A party's trained models, and how it prepares its rows; `more` may be said beside them."""
    folder.mkdir(exist_ok=True)
    preparation = party.preparation
    store.save(
        {
            "weights": party.kept.weights(),
            "shape": list(party.shape) if party.has_features else [],
            "view": [] if party.view is None else party.view.numbers(),
            "preparation": None if preparation is None else preparation.tensors(),
            "columns": []
            if preparation is None
            else [[c.name, list(c.categories), c.missing] for c in preparation.columns],
            **more,
        },
        folder / party.name,
    )
