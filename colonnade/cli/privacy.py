"""`colonnade privacy`: what has been spent on a data set, by run, party, Kind and purpose."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from colonnade import toml
from colonnade.errors import ConfigError, JournalError, RunError, unknown
from colonnade.journal import Anchor, Journal, Names, default_place
from colonnade.journal.journal import FILE
from colonnade.journal.run import SIMULATED
from colonnade.journal.spent import by_run, records_of
from colonnade.owner import data_folder
from colonnade.privacy.account import lost
from colonnade.wire import limits
from colonnade.wire.limits import ABOUT, Limits

NOISE = {
    "gaussian": "σ = {:.4g} Δ",
    "discrete": "discrete, σ = {:.4g} Δ",
    "laplace": "Laplace, b = {:.4g} Δ",
    "response": "answer, ε = {:.4g}",
    "none": "none",
}


@dataclass(frozen=True)
class Place:
    """One party's journal, and what is known of it."""

    folder: Path
    party: str
    limits: Limits = limits.NONE
    anchor: Anchor | None = None


def main(arguments: argparse.Namespace) -> int:
    data: Path = arguments.data
    console = Console(highlight=False)
    if not data.exists():
        raise RunError(f"colonnade privacy: {data} is neither a file nor a folder")
    if data.is_dir():
        found = [_listed(place, None, arguments.delta) for place in _places(arguments)]
        if not found and not arguments.json:
            said = f"{data} has no journal: no protection has counted anything in this folder"
            console.print(Text(said), soft_wrap=True)
    else:
        found = [_of_file(arguments)]
    if arguments.json:
        sys.stdout.write(json.dumps({"data": str(data), "journals": found}, indent=1) + "\n")
        return 0
    for one in found:
        _show(one, console, quiet=arguments.quiet)
    return 0


# ---- which journal -------------------------------------------------------------------------------


def _places(arguments: argparse.Namespace) -> list[Place]:
    """The journals that belong to a folder."""
    folder: Path = arguments.data
    most, named = _policy(arguments)
    if (folder / FILE).exists():
        return [Place(folder, arguments.name or folder.name, most)]
    inside = sorted((folder / SIMULATED).glob(f"*/{FILE}"))
    if inside:
        return [Place(file.parent, file.parent.name) for file in inside]
    if (folder / SIMULATED / FILE).exists():  # of one process of a simulation
        return [Place(folder / SIMULATED, folder.name)]
    parts = sorted(folder.glob(f"parties/*/{SIMULATED}/{FILE}"))
    if parts:
        return [Place(file.parent, file.parents[1].name) for file in parts]
    if not (folder / "run.json").exists():
        raise RunError(
            f"colonnade privacy: {folder} is neither a run folder nor a journal, which has a "
            f"{FILE}. Give a party's own file with --name and --federation, its journal's folder, "
            "or a run folder"
        )
    run = json.loads((folder / "run.json").read_text())
    party, anchor = run.get("party"), Anchor.of(run.get("journal"))
    if party is None or anchor is None:
        return []
    federation = str(toml.load(folder / "config.toml").get("name", ""))
    place = named or default_place(federation, party)
    if not (place / FILE).exists() and arguments.policy is None:
        raise RunError(
            f"colonnade privacy: {folder} is a run of '{party}', and its journal is not in "
            f"{place}: give the --policy that names it"
        )
    return [Place(place, party, most, anchor)]


def _place_of_file(arguments: argparse.Namespace) -> Place:
    """The journal of the party whose file it is."""
    most, named = _policy(arguments)
    name, file = arguments.name, arguments.federation
    if file is None:
        if named is None:
            raise RunError(
                "colonnade privacy: whose file is that? Give --name and --federation, as for "
                "colonnade party, or a --policy that names the journal"
            )
        return Place(named, name or named.name, most)
    tree = toml.load(file)
    parties = toml.table(tree, "parties", [])
    if name is None:
        raise RunError(f"colonnade privacy: give --name, one of {', '.join(parties)}")
    if name not in parties:
        raise RunError(f"colonnade privacy: {unknown(name, parties, f'in {file}', 'member')}")
    return Place(named or default_place(str(tree.get("name", "")), name), name, most)


def _policy(arguments: argparse.Namespace) -> tuple[Limits, Path | None]:
    """The limits and the journal that a policy names, its own file before the federation's."""
    path = arguments.policy or arguments.federation
    if path is None:
        return limits.NONE, None
    tree, problems = toml.load(path), list[str]()
    table = tree if arguments.policy else toml.table(tree, "policy", problems)
    found = limits.read(table.get("privacy", {}), "privacy", problems)
    if problems:
        raise ConfigError([f"{path}: {problem}" for problem in problems])
    journal = table.get("journal") if arguments.policy else None
    return found, None if journal is None else path.parent / str(journal)


# ---- what is in it -------------------------------------------------------------------------------


def _of_file(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was spent on the rows of a party's own file."""
    place, ids = _place_of_file(arguments), _ids(arguments)
    if (place.folder / FILE).exists():
        found = _listed(place, ids, arguments.delta)
    else:
        found = _empty(place, len(ids))
    return {**found, "elsewhere": list(_elsewhere(place, ids))}


def _ids(arguments: argparse.Namespace) -> list[str]:
    """The ids of a file, one way of writing each: as journals name their records."""
    own = import_module("colonnade.data.own")  # which needs PyTorch, as a journal does not
    try:
        file = own.described(arguments.data)
    except ValueError as error:
        raise RunError(f"{arguments.data}: {error}") from None
    if arguments.id is not None:
        file = replace(file, id=arguments.id)
    ids = own.read(file, Path(), like=()).ids
    found: list[str] = import_module("colonnade.align.ids").one_spelling(ids)
    return found


def _listed(place: Place, ids: list[str] | None, delta: float | None) -> dict[str, Any]:
    """One journal: what was spent on some records, or on all that it knows."""
    at = delta or place.limits.delta
    with closing(Journal(place.folder, place.anchor)) as journal:
        names = records_of(journal) if ids is None else np.unique(journal.names(ids))
        return {
            **_empty(place, None if ids is None else len(ids)),
            "simulated": journal.simulated,
            "spent": by_run(journal, names),
            "lost": {about: _lost(journal, names, about, at, place.limits) for about in ABOUT},
        }


def _lost(
    journal: Journal, names: Names, about: limits.About, delta: float, most: Limits
) -> dict[str, Any]:
    found = lost(journal, names, about, delta)
    epsilon = found.epsilon if math.isfinite(found.epsilon) else None
    limit = most.of(about) or None
    return {"epsilon": epsilon, "delta": delta, "records": found.records, "limit": limit}


def _empty(place: Place, rows: int | None) -> dict[str, Any]:
    """Of a journal that no run has begun."""
    return {
        "journal": str(place.folder),
        "party": place.party,
        "simulated": False,
        "rows": rows,
        "spent": [],
        "lost": {},
    }


def _elsewhere(place: Place, ids: list[str]) -> Iterator[dict[str, Any]]:
    """Other journals of a party of this name that know some of these records."""
    for file in sorted(data_folder().glob(f"*/{place.party}/{FILE}")):
        if file.parent.resolve() == place.folder.resolve():
            continue
        try:
            with closing(Journal(file.parent)) as journal:
                count = int(np.isin(journal.names(ids), journal.records()).sum())
        except JournalError:
            continue
        if count:
            yield {"journal": str(file.parent), "records": count}


# ---- for a person --------------------------------------------------------------------------------


def _show(found: Mapping[str, Any], console: Console, *, quiet: bool) -> None:
    if not quiet:
        said = f"{found['party']}: journal {found['journal']}"
        if found["simulated"]:
            said += "\na simulation: this counts for nobody; equal rows without ids are one record"
        console.print(Text(said), soft_wrap=True)
        if found["spent"]:
            console.print(_table(found))
    for text in _sentences(found):
        console.print(Text(text), soft_wrap=True)


def _table(found: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("run", "Kind", "purpose", "noise"):
        table.add_column(name, no_wrap=name != "Kind", overflow="fold")
    for name in ("times", "records"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in found["spent"]:
        noise = NOISE.get(line["mechanism"], f"{line['mechanism']}, {{:.4g}}")
        table.add_row(
            line["run"].partition(" ")[0] or "this one",
            line["kind"],
            line["purpose"],
            noise.format(line["size"]),
            f"{line['times']:,}",
            f"{line['records']:,}",
        )
    return table


def _sentences(found: Mapping[str, Any]) -> Iterator[str]:
    rows = found["rows"]
    of = " records" if rows is None else f" of {rows:,} rows"
    for about, lost_ in found["lost"].items():
        if not lost_["records"]:
            continue
        epsilon = "no finite ε" if lost_["epsilon"] is None else f"ε = {lost_['epsilon']:.4g}"
        said = f"{about:8}  {epsilon} at δ = {lost_['delta']:g}, of the record that lost most; "
        said += f"{lost_['records']:,}{of} lost something"
        if lost_["limit"]:
            said += f"; the policy allows {lost_['limit']:g}"
        yield said
    if not found["spent"]:
        which = "any records" if rows is None else f"these {rows:,} rows"
        yield f"no protection has spent anything on {which}, in any run that this journal knows"
    yield "What leaves without a protection has no ε and is not counted here: see colonnade ledger"
    for other in found.get("elsewhere", ()):
        yield (
            f"{other['journal']}, of a federation of another name, knows {other['records']:,} of "
            "these rows: list it, too, and name one journal in the policy if they are the same "
            "people"
        )
