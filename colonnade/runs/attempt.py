"""One attempt at a run: its folder, new or to go on with, and what an error says about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from colonnade.config import Config
from colonnade.errors import ColonnadeError, RunError
from colonnade.report.prose import budget
from colonnade.results import folder as folders
from colonnade.results.result import read_json

Runtime = Literal["local", "process", "nvflare"]


@dataclass(frozen=True)
class Attempt:
    """Where a run is written, and which of its attempts this is."""

    folder: Path
    number: int
    runtime: Runtime
    resumed: bool


@contextmanager
def open_new(
    settings: Config, out: str | Path | None, overwrite: bool, runtime: Runtime | None
) -> Iterator[Attempt]:
    """A new folder, which is locked while it lasts."""
    folder = Path(out) if out is not None else folders.free(settings.run.name, overwrite)
    runtime = runtime or "local"
    number = folders.create(folder, settings, overwrite, runtime=runtime)
    with folders.alone(folder):
        yield Attempt(folder, number, runtime, resumed=False)


@contextmanager
def reopen(folder: Path, settings: Config, asked: Runtime | None) -> Iterator[Attempt]:
    """The folder of a run that was stopped, which is locked while it lasts."""
    manifest = folders.reopen(folder, settings)
    with folders.alone(folder):
        number = manifest["attempt"] + 1
        runtime = _same_runtime(asked, manifest.get("runtime", "local"), folder)
        folders.mark(folder, settings, number, runtime=runtime)
        yield Attempt(folder, number, runtime, resumed=True)


def _same_runtime(asked: Runtime | None, before: object, folder: Path) -> Runtime:
    if asked is not None and asked != before:
        raise RunError(f"{folder} was begun with --runtime {before}: resume it with that")
    for runtime in get_args(Runtime):
        if runtime == before:
            known: Runtime = runtime
            return known
    raise RunError(f"{folder / 'run.json'} is damaged: there is no runtime '{before}'")


@contextmanager
def telling(folder: Path) -> Iterator[None]:
    """Add notes to the error that ends a run: what was saved, what was spent, how to resume."""
    try:
        yield
    except KeyboardInterrupt as stop:
        folders.tell(stop, folder, f"go on with: {folders.command_for(folder)}")
        _tell_spent(stop, folder)
        raise
    except ColonnadeError as error:
        folders.tell(error, folder, f"what was reached lies in {folder}")
        _tell_spent(error, folder)
        raise


def _tell_spent(error: BaseException, folder: Path) -> None:
    """Add a note about the privacy budget that was spent."""
    file = folder / "result.json"
    if file.exists() and (spent := budget(read_json(file))):
        error.add_note(spent)
