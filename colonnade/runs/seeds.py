"""One configuration with several seeds: a run for each, and their means.

runs/<name>-seeds/
  seed-7/ seed-8/ …    the runs, each as if it had been made alone
  seeds.json           the mean of every measure, and its interval by Student's t

Runs that are finished are not made again: after a stop, the same call goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from colonnade import config as configuration
from colonnade.config import Config
from colonnade.deploy.supervisor import Options
from colonnade.errors import ColonnadeError, ConfigError, RunError
from colonnade.owner import private
from colonnade.plugin import own
from colonnade.report.seeds import summed
from colonnade.results.observer import Observer
from colonnade.results.result import SEEDS, Result, read, read_json
from colonnade.runs.attempt import Runtime
from colonnade.runs.run import Source, run
from colonnade.wire import store


def is_seeds(folder: Path) -> bool:
    """Whether a folder holds several seeds of one configuration."""
    return (folder / SEEDS).is_file()


def read_seeds(folder: Path) -> dict[str, Any]:
    """The summary of such a folder."""
    content = read_json(folder / SEEDS)
    if content.get("schema") != 1 or not {"measures", "seeds", "metric"} <= content.keys():
        raise RunError(f"{folder / SEEDS} is damaged: run the same command again")
    return content


@dataclass(frozen=True)
class Seeds:
    """What several runs of one configuration leave: seeds.json as `content`, and the runs."""

    content: dict[str, Any]
    path: Path
    results: tuple[Result, ...]

    def __repr__(self) -> str:
        told = self.content["measures"].get(self.content["metric"], {})
        mean = told.get("mean")
        within = "" if told.get("low") is None else f" ({told['low']:.4g} to {told['high']:.4g})"
        value = "nothing measured" if mean is None else f"test {self.metric} {mean:.4g}{within}"
        return f"<Seeds {self.content['name']}: {self.content['seeds']}, {value}, in {self.path}>"

    @property
    def metric(self) -> str:
        """The measure that decides."""
        return str(self.content["metric"])

    @property
    def measures(self) -> dict[str, dict[str, Any]]:
        """Every measure on the test rows: mean, low and high of its interval, all values."""
        return dict(self.content["measures"])


@private()
def run_seeds(
    config: Source,
    seeds: int,
    *,
    parties: Mapping[str, Any] | None = None,
    test: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    overwrite: bool = False,
    observer: Observer | None = None,
    runtime: Runtime | None = None,
    processes: Options | None = None,
) -> Seeds:
    """Train one configuration with the seeds s, s + 1, …, where s is its own seed.

    seeds      how many
    out        the folder that holds all runs; default runs/<name>-seeds
    overwrite  make finished runs again, too
    The rest is as for `run`.
    """
    settings = configuration.load(config, overrides, rule=own)
    if seeds < 1:
        raise ConfigError([f"seeds = {seeds}: at least 1"])
    folder = Path("runs") / f"{settings.run.name}-seeds" if out is None else Path(out)
    if (folder / "run.json").exists():
        raise RunError(f"{folder} is a run of one seed: choose another --out for several seeds")
    numbers = range(settings.run.seed, settings.run.seed + seeds)
    each = [replace(settings, run=replace(settings.run, seed=seed)) for seed in numbers]
    done = {} if overwrite else _finished(folder, each)
    observer, results = observer or Observer(), list[Result]()
    for place, one in enumerate(each, start=1):
        seed, at = one.run.seed, folder / f"seed-{one.run.seed}"
        if seed in done:
            observer.note(f"seed {seed}, {place} of {seeds}: finished before")
            results.append(done[seed])
            continue
        observer.note(f"seed {seed}, {place} of {seeds}")
        begun = (at / "run.json").exists() and not overwrite
        try:
            results.append(
                run(
                    one,
                    parties=parties,
                    test=test,
                    out=None if begun else at,
                    resume=at if begun else None,
                    overwrite=overwrite,
                    observer=observer,
                    runtime=runtime,
                    processes=processes,
                )
            )
        except (ColonnadeError, KeyboardInterrupt) as stop:
            stop.add_note(f"{len(results)} of {seeds} seeds are finished: the same command goes on")
            raise
    content = summed(folder.name, [result.content for result in results])
    store.write_text(json.dumps(content, indent=1), folder / SEEDS)
    return Seeds(content, folder, tuple(results))


def _finished(folder: Path, each: Sequence[Config]) -> dict[int, Result]:
    """The runs that are there already; an error if one is of other settings."""
    found = {}
    for one in each:
        at = folder / f"seed-{one.run.seed}"
        if not (at / "weights").exists():
            continue
        result, pins = read(at), read_json(at / "run.json").get("code", {})
        if _settings(result.content["config"]) != _settings(one.resolved()) or pins != one.pins():
            raise RunError(
                f"{at} was made with other settings: choose another --out, or make all runs again "
                "with --overwrite"
            )
        found[one.run.seed] = result
    return found


def _settings(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal; how rows are divided may have been found out by the run itself."""
    kept = {k: v for k, v in resolved.items() if k not in ("name", "partition", "data")}
    data = {k: v for k, v in resolved.get("data", {}).items() if k != "name"}
    plain: dict[str, Any] = json.loads(json.dumps(kept | {"data": data}))
    return plain
