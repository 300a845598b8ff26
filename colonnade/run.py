"""One run, from a configuration to a result: the whole flow, top to bottom."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade import assemble, identity, models, state
from colonnade import config as configuration
from colonnade.assemble import Federation
from colonnade.config import Config
from colonnade.data import IN_MEMORY
from colonnade.errors import ColonnadeError, RunError
from colonnade.method import bind
from colonnade.party import Meter, Party
from colonnade.runtime import local
from colonnade.runtime.checkpoint import Checkpoints
from colonnade.version import __version__
from colonnade.wire import Ledger, Wire, ledger
from colonnade.wire.record import Recorder

SCHEMA = 1
Source = str | Path | Mapping[str, Any] | Config


class Observer:
    """What a progress display may override; the default shows nothing.

    It is reachable from every party, so it is given no party: only meters and finished rows.
    """

    def began(self, config: Config, meters: Mapping[str, Meter], ledger: Ledger) -> None: ...

    def epoch(self, party: str, row: Mapping[str, Any]) -> None: ...

    def ended(self) -> None: ...


@dataclass(frozen=True)
class Result:
    """What a run leaves: result.json as `content`, and the folder it lies in."""

    content: dict[str, Any]
    path: Path

    @property
    def accuracy(self) -> float | None:
        """Test accuracy, a fraction."""
        value: float | None = self.content["metrics"].get("test", {}).get("accuracy")
        return value

    @property
    def metrics(self) -> dict[str, Any]:
        return dict(self.content["metrics"])

    @property
    def history(self) -> list[dict[str, Any]]:
        return list(self.content["history"])

    @property
    def wire(self) -> dict[str, Any]:
        return dict(self.content["wire"])

    @property
    def weights_sha256(self) -> dict[str, str]:
        return dict(self.content["weights_sha256"])


def run(
    config: Source,
    *,
    parties: Mapping[str, Any] | None = None,
    test: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    resume: str | Path | None = None,
    overwrite: bool = False,
    observer: Observer | None = None,
    lose: Mapping[str, int] | None = None,
) -> Result:
    """Train one configuration and return its result.

    parties    in-memory data, {"bank": (x, y), "shop": x}; without it, [data] of the config
    test       test rows in the same form; without it, a seeded share of the rows
    overrides  "key=value" texts, as on the command line
    out        the folder that will hold the run; default runs/<name>, <name>-2, <name>-3 …
    resume     a run folder that was stopped: go on from its last common checkpoint
    overwrite  replace an older run in the folder `out`, or in runs/<name>
    observer   is told how the run goes; see Observer
    lose       {"shop": 12}: rehearse the loss of a party after 12 training steps
    """
    began = time.perf_counter()
    observer = observer or Observer()
    # 1. Read and check everything before anything is written.
    settings = configuration.load(config, overrides)
    with reproducible(settings.run.threads, settings.run.device == "cuda"):
        if parties is None:
            federation = assemble.from_catalogue(settings)
        else:
            federation = assemble.from_memory(settings, parties, test)
        settings = replace(settings, partition=federation.partition)
        if parties is not None:
            settings = replace(settings, data=replace(settings.data, name=IN_MEMORY))
        _check_loss(lose or {}, federation)
        # 2. The folder: new, or one to go on with.
        if resume is not None:
            if out is not None:
                raise RunError("resume goes on in its own folder: leave `out` away")
            folder = Path(resume)
            attempt = _reopen(folder, settings)
        else:
            folder = Path(out) if out is not None else _free(settings.run.name, overwrite)
            attempt = _create(folder, settings, overwrite)
        earlier = _seconds_so_far(folder) if resume else 0.0
        book = Ledger(folder / "ledger.jsonl", attempt)
        recorder = Recorder(folder / "record", settings.run.record) if settings.run.record else None
        checkpoints = Checkpoints(folder / "checkpoints", list(federation.parties), book.flush)
        if resume:
            for name, snapshot in (checkpoints.latest() or {}).items():
                federation.parties[name].resume(snapshot)
        for party in federation.parties.values():
            party.on_epoch, party.on_checkpoint = observer.epoch, checkpoints.save
        if settings.found.method.signs(settings.options):
            identities = identity.simulated(
                list(federation.parties), f"{settings.sha256()} attempt {attempt}"
            )
            for name, party in federation.parties.items():
                party.identity = identities[name]
        # 3. Run the roles.
        status, problem, warnings = "failed", "", list[str]()
        setup = time.perf_counter() - began
        meters = {name: party.meter for name, party in federation.parties.items()}
        observer.began(settings, meters, book)
        try:
            warnings = _train(settings, federation, book, recorder, checkpoints, lose)
            status = "finished"
        except KeyboardInterrupt as stop:
            status = "stopped"
            stop.add_note(f"go on with: colonnade run --resume {folder}")
            raise
        except ColonnadeError as error:
            problem = str(error)
            error.add_note(f"what was reached lies in {folder}")
            raise
        finally:
            # 4. Whatever happened: the ledger, the result so far.
            observer.ended()
            if recorder is not None:
                recorder.flush()
            book.close()
            seconds = earlier + time.perf_counter() - began
            content = _result(settings, federation, folder, setup, seconds)
            content["wire"]["head"] = book.head
            warnings += _divergence(content["history"])
            content |= {"status": status, "error": problem, "warnings": warnings}
            state.write_text(json.dumps(content, indent=1), folder / "result.json")
        # 5. The trained models; checkpoints have done their work.
        for party in federation.parties.values():
            _save_weights(party, folder / "weights.part")
        (folder / "weights.part").rename(folder / "weights")  # all of them make a finished run
        checkpoints.clear()
    return Result(content, folder)


# Of a party's history: what is not a number that the method logged.
NOT_LOGGED = ("phase", "epoch", "seconds", "others")


@contextmanager
def reproducible(threads: int, cuda: bool) -> Iterator[None]:
    """Sums depend on the number of threads, some GPU kernels on luck: fix both, then undo it."""
    before = torch.get_num_threads()
    strictly = torch.are_deterministic_algorithms_enabled()
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filling = memory.fill_uninitialized_memory
    torch.set_num_threads(threads)
    if cuda:
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = False  # it costs, and hides nothing
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(strictly, warn_only=lenient)
        memory.fill_uninitialized_memory = filling


def _train(
    settings: Config,
    federation: Federation,
    book: Ledger,
    recorder: Recorder | None,
    checkpoints: Checkpoints,
    lose: Mapping[str, int] | None,
) -> list[str]:
    """Run every role to its end; what should be known about the messages."""
    method = settings.found.method
    mail = local.Mailboxes(
        {kind.name: kind for kind in method.kinds}, book, settings.run.strict, recorder
    )

    def start(party: Party, wire: Wire) -> Any:
        program = method.roles[party.role].train
        return bind(program, party, federation.cast, wire, settings.options)

    local.run(federation.parties, start, mail, lose, finished=checkpoints.finish)
    return mail.warnings()


def _check_loss(lose: Mapping[str, int], federation: Federation) -> None:
    for name in lose:
        if name not in federation.parties:
            parties = ", ".join(federation.parties)
            raise RunError(f"lose = '{name}': no such party; there are {parties}")


def _divergence(history: list[dict[str, Any]]) -> list[str]:
    """A loss that is not a number any more, and since when."""
    found: dict[str, str] = {}
    for row in history:
        for name, numbers in row["parties"].items():
            if "loss" in numbers and numbers["loss"] is None and name not in found:
                found[name] = (
                    f"the loss of '{name}' is not finite since epoch {row['epoch']}: the training "
                    "diverged; try a smaller lr"
                )
    return list(found.values())


def _create(folder: Path, settings: Config, overwrite: bool) -> int:
    """A new folder; an older run in its place goes only if it may."""
    try:
        if folder.exists():
            if not (folder / "run.json").exists() and any(folder.iterdir()):
                raise RunError(f"{folder} exists and is not a run: choose another --out")
            if not overwrite and any(folder.iterdir()):
                raise RunError(
                    f"{folder} holds an older run: choose another --out, or replace it with "
                    "--overwrite"
                )
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        state.write_text(configuration.dumps(settings), folder / "config.toml")
        if settings.run.method.endswith(".py"):  # so that the folder can be read without it
            shutil.copyfile(settings.found.path, folder / settings.found.path.name)
        for name in settings.own_models():
            shutil.copyfile(models.path_of(name), folder / models.path_of(name).name)
        state.write_text(_manifest(settings, 1), folder / "run.json")
        (folder / "ledger.jsonl").touch()
    except OSError as error:
        raise RunError(f"{folder} cannot be made: {error.strerror}; choose another --out") from None
    return 1


def _free(name: str, overwrite: bool) -> Path:
    """runs/<name>, or the first numbered one that is free: older results stay where they are."""
    folder, number = Path("runs") / name, 2
    while folder.exists() and not overwrite:
        folder, number = Path("runs") / f"{name}-{number}", number + 1
    return folder


def _seconds_so_far(folder: Path) -> float:
    """Of the attempts that could still write a result."""
    if not (folder / "result.json").exists():
        return 0.0
    timing = read_json(folder / "result.json").get("timing", {})
    return float(timing.get("seconds_total", 0.0))


def _reopen(folder: Path, settings: Config) -> int:
    """A stopped run of the very same configuration; returns the number of this attempt."""
    manifest = read_json(folder / "run.json")
    if (folder / "weights").exists():
        raise RunError(f"{folder} is finished: there is nothing to resume")
    before = manifest.get("attempt")
    if not isinstance(before, int):
        raise RunError(f"{folder / 'run.json'} is damaged: it does not say which attempt this is")
    if manifest.get("config_sha256") != settings.sha256():
        raise RunError(
            f"{folder} was made by another configuration or method file. To go on with its own: "
            f"colonnade run --resume {folder}"
        )
    if not (folder / "ledger.jsonl").exists():
        raise RunError(f"{folder} has lost its ledger.jsonl, which says what was sent before")
    attempt = before + 1
    state.write_text(_manifest(settings, attempt), folder / "run.json")
    return attempt


def _manifest(settings: Config, attempt: int) -> str:
    return json.dumps({"config_sha256": settings.sha256(), "attempt": attempt})


def _result(
    settings: Config, federation: Federation, folder: Path, setup: float, seconds: float
) -> dict[str, Any]:
    method = settings.found.method
    kinds = {kind.name: kind for kind in method.kinds}
    history = _history(federation.parties)
    return {
        "schema": SCHEMA,
        "name": folder.name,
        "method": method.name,
        "seed": settings.run.seed,
        "runtime": "local",
        "status": "finished",
        "error": "",
        "warnings": [],
        "config": settings.resolved(),
        "config_sha256": settings.sha256(),
        "data": federation.data,
        "parties": list(federation.parties),
        "roles": federation.cast,
        "metrics": _metrics(federation),
        "history": history,
        "wire": ledger.summarise(ledger.read(folder / "ledger.jsonl"), kinds),
        "timing": {
            "seconds_total": seconds,
            "seconds_per_epoch": [row["seconds"] for row in history],
            "setup": setup,
            "spent": {
                name: dict(party.spent) for name, party in federation.parties.items() if party.spent
            },
        },
        "weights_sha256": {
            name: party.weights_sha256() for name, party in federation.parties.items()
        },
        "environment": _environment(settings),
    }


def _history(parties: Mapping[str, Party]) -> list[dict[str, Any]]:
    """One row per phase and epoch, with the numbers of every party that logged any."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for name, party in parties.items():
        for entry in party.history:
            key = (entry["phase"], entry["epoch"])
            row = rows.setdefault(
                key, {"epoch": key[1], "phase": key[0], "seconds": 0.0, "parties": {}}
            )
            row["seconds"] = max(row["seconds"], entry["seconds"])
            own = {k: v for k, v in entry.items() if k not in NOT_LOGGED}
            for whose, numbers in {name: own, **entry.get("others", {})}.items():
                if numbers:  # JSON has neither NaN nor infinity
                    finite = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
                    row["parties"].setdefault(whose, {}).update(finite)
    for row in rows.values():  # in the order of the parties, whoever logged first
        row["parties"] = {name: row["parties"][name] for name in parties if name in row["parties"]}
    return list(rows.values())


def _metrics(federation: Federation) -> dict[str, Any]:
    """The last evaluation of every split that was scored."""
    metrics: dict[str, Any] = {}
    for party in federation.parties.values():
        for split, measures in party.predictions.items():
            labels = party.splits[split].y
            assert labels is not None
            entry = metrics.setdefault(split, {"accuracy": None, "per_party": {}})
            for measure, by_party in measures.items():
                for name, predicted in by_party.items():
                    right = int((predicted == labels).sum())  # the same fraction on any device
                    entry.setdefault(measure, {})[name] = right / len(labels)
                    counts = measure == "per_party"
                    if counts and ("confusion" not in entry or name == federation.holder):
                        entry["confusion"] = _confusion(labels, predicted, len(party.classes))
                        entry["confusion_party"] = name
    for entry in metrics.values():
        scores = list(entry["per_party"].values())
        entry["accuracy"] = sum(scores) / len(scores)
    return metrics


def _confusion(labels: Tensor, predicted: Tensor, classes: int) -> list[list[int]]:
    cells = torch.bincount((labels * classes + predicted).cpu(), minlength=classes * classes)
    table: list[list[int]] = cells.reshape(classes, classes).tolist()
    return table


def _environment(settings: Config) -> dict[str, Any]:
    device = settings.run.device
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": settings.run.threads,
        "platform": f"{platform.system()} {platform.machine()}",
        "colonnade": __version__,
        "commit": commit(),
    }


def commit() -> str:
    """The commit of the source tree, with a + where it was changed; empty outside of one."""
    git = shutil.which("git")
    source = Path(__file__).resolve().parents[1]
    if git is None or not (source / ".git").exists():
        return ""
    show = subprocess.run(
        [git, "-C", os.fspath(source), "describe", "--always", "--dirty=+", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return show.stdout.strip()


def _save_weights(party: Party, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    preparation = party.preparation
    state.save(
        {
            "weights": party.weights(),
            "shape": list(party.shape) if party.has_features else [],
            "preparation": None if preparation is None else preparation.tensors(),
            "columns": []
            if preparation is None
            else [[column.name, list(column.categories)] for column in preparation.columns],
        },
        folder / party.name,
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a run folder."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path.parent} is not a run: {path.name}: {error.strerror}") from None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} is damaged: it holds no table")
    return content
