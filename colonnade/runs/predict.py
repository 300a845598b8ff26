"""A trained run, ready to predict: every party that took part in training takes part again.

Some methods can do without some of them. Here all parties are one trust domain; strangers, whose
embeddings are masked, refuse to predict the same rows once with and once without a party.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade import data, report
from colonnade.align.phase import common_in_clear
from colonnade.assembly import (
    POOLED,
    Assembly,
    as_image,
    from_catalogue,
    from_files,
    heard,
    names_of,
    of,
    read_all,
    schedule_of,
    sha256_of,
    task_for,
)
from colonnade.config import Config
from colonnade.data import IN_MEMORY, Column, Preparation, Split
from colonnade.data.own import Own
from colonnade.errors import DataError, RunError, unknown
from colonnade.journal import RunJournal
from colonnade.owner import private
from colonnade.partition import View
from colonnade.privacy.protection import protect
from colonnade.results import folder as folders
from colonnade.results.prediction import Prediction, Truth, is_label, made
from colonnade.results.result import read
from colonnade.role import identity
from colonnade.role.method import bind
from colonnade.role.party import Party
from colonnade.runs.new_rows import NewRows, pooled, pooled_columns
from colonnade.runtime import local
from colonnade.runtime.drive import reproducible
from colonnade.task import Task
from colonnade.wire import Ledger, Wire

SPLIT = "predict"


@dataclass(frozen=True)
class Trained:
    """A finished run folder."""

    path: Path
    result: dict[str, Any]
    config: Config
    # What protected the vectors of the last rows that were predicted, by party
    protected: dict[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        parties = ", ".join(self.result["parties"])
        return f"<Trained {self.result['method']} of {parties}, in {self.path}>"

    @private()
    def predict(
        self, parties: Mapping[str, Any] | NewRows | None = None, absent: Collection[str] = ()
    ) -> dict[str, Prediction]:
        """Every predicting party's prediction, by name; the label holder's comes first.

        parties  {"bank": x, "shop": x} new rows, the same and in the same order at every party;
                 or what `read_files` made of new files; without it, the test rows of the run
        absent   passive parties that take no part, ["shop"]; their rows are not needed
        """
        method, cast = self.config.found.method, self.result["roles"]
        absent = [absent] if isinstance(absent, str) else absent
        method.check_absent(absent, cast, self.config.options)
        given = parties.rows if isinstance(parties, NewRows) else parties
        if method.predicts_alone and isinstance(given, Mapping):  # whoever has rows predicts alone
            absent = [*absent, *(n for n in self.result["parties"] if n not in given)]
        splits: dict[str, tuple[Tensor | None, Tensor]]
        if isinstance(parties, NewRows):
            splits = {n: (x, torch.arange(len(x))) for n, x in parties.rows.items()}
        else:
            splits = self._test_rows() if parties is None else self._given_rows(parties, absent)
        there = [name for name in self.result["parties"] if name not in absent]
        saved = {name: self.saved(name) for name in there}
        members = {name: self._party(name, splits.get(name), saved[name]) for name in there}
        if method.membership.signs(self.config.options):
            session = f"{self.config.sha256()} predict {secrets.token_hex(8)}"
            for name, known in identity.simulated(list(members), session).items():
                members[name].identity = known

        def start(party: Party, wire: Wire) -> Any:
            program = method.roles[party.role].predict
            return bind(program, party, cast, wire, self.config.options, absent, split=SPLIT)

        book = Ledger(_touched(self.path / "ledger-predict.jsonl"))
        mail = local.Mailboxes({kind.name: kind for kind in method.kinds}, book)
        device = next(iter(members.values())).device
        try:
            with reproducible(self.config.run.threads, device.type == "cuda"):
                answers = local.run(members, start, mail)
        finally:
            book.close()
        self.protected.clear()
        for name, party in members.items():
            if party.protection is not None and (told := party.protection.told()):
                self.protected[name] = told
        names: Mapping[str, Sequence[str]] = {}
        if isinstance(parties, NewRows):
            names = parties.names
        elif parties is None:
            names = self._names()
        outputs = {n: found for n, found in answers.items() if isinstance(found, Tensor)}
        found = self._predictions(members, outputs, names, saved)
        order = parties.order if isinstance(parties, NewRows) else None
        return found if order is None else {n: p.only(order.tolist()) for n, p in found.items()}

    def _predictions(
        self,
        members: Mapping[str, Party],
        outputs: Mapping[str, Tensor],
        names: Mapping[str, Sequence[str]],
        saved: Mapping[str, Mapping[str, Any]],
    ) -> dict[str, Prediction]:
        deciding = {name: told for name, told in saved.items() if told.get("decision")}
        if deciding and not deciding.keys() & outputs.keys():  # whoever has labels judges others
            deciding = {next(iter(outputs)): next(iter(deciding.values()))}
        found = {}
        for name, each in outputs.items():
            ids, rate = members[name].splits[SPLIT].ids.cpu(), self.config.decision.rate
            called = tuple(names[name][row] for row in ids.tolist()) if name in names else ()
            told = deciding.get(name, {})
            found[name] = made(members[name], each, ids, called, self.path, told, rate)
        return found

    def read_files(self, files: Mapping[str, str | Path], absent: Collection[str] = ()) -> NewRows:
        """New rows from files with ids, for a run on the parties' own files.

        files  {"bank": "new_bank.csv", …}, with the columns of training, found by name. Rows that
               are predicted together are joined by their ids, in the clear: all files are here.
        """
        self._check_files(files, absent)
        method = self.config.found.method
        as_one = self.result["parties"] == [POOLED]
        if as_one:
            columns = pooled_columns(self._columns(POOLED))
        else:
            columns = {name: self._columns(name) for name in files}
        found = read_all(
            {n: replace(self.config.files[n], data=str(file)) for n, file in files.items()},
            like={name: columns.get(name, ()) for name in files},
        )
        kept = {name: torch.arange(len(own.ids)) for name, own in found.items()}
        alone = len(files) < 2 or not (as_one or method.kinds) or method.predicts_alone
        if not alone:
            kept = common_in_clear(
                {name: own.ids for name, own in found.items()}, self.config.asked
            )
            if not all(len(rows) for rows in kept.values()):
                raise DataError(
                    f"no row is common to the files of {', '.join(files)}: are the ids of one "
                    "sort, and written alike?"
                )
        rows = {name: own.x[kept[name]] for name, own in found.items()}
        names = {n: tuple(own.ids[row] for row in kept[n].tolist()) for n, own in found.items()}
        left = {name: len(own.ids) - len(kept[name]) for name, own in found.items()}
        order = None if alone else kept[self._asking(found)].argsort()
        asked = kept if order is None else {name: kept[name][order] for name in kept}
        truth = self._truth(found, asked, alone=alone)
        if as_one:
            rows = {POOLED: torch.cat([rows[name] for name in columns], 1)}
            names = {POOLED: names[next(iter(columns))]}
        prepared = {name: self._prepared(name, x) for name, x in rows.items()}
        for name in self.config.files:  # labels, and nothing to predict from
            if name in self.result["parties"] and name not in (*absent, *prepared):
                prepared[name] = torch.empty(len(next(iter(prepared.values()))), 0)
        return NewRows(prepared, names, left, truth, order)

    def _asking(self, found: Mapping[str, Own]) -> str:
        """Whose file says in which order common rows are predicted: the label holder's."""
        holder = self.config.run.label_holder
        labelled = [name for name, own in found.items() if own.labels]
        return holder if holder in found else next(iter([*labelled, *found]))

    def _truth(
        self, found: Mapping[str, Own], kept: Mapping[str, Tensor], *, alone: bool
    ) -> dict[str, tuple[str, ...]]:
        """The labels of new rows, by who predicts them: the holder's, where rows are common."""
        task = self._task()
        own = {
            name: tuple(file.labels[row] for row in kept[name].tolist())
            for name, file in found.items()
            if file.labels and any(is_label(text, task) for text in set(file.labels))
        }
        if alone:
            return own
        holder = self.config.run.label_holder or next(iter(own), "")
        return dict.fromkeys(self.result["parties"], own[holder]) if holder in own else {}

    def changed(self) -> list[str]:
        """The parties whose own files are not what they were when the run read them."""
        before: Mapping[str, str] = self.result["data"].get("files_sha256", {})
        files = {name: self.config.files[name].path(Path()) for name in before}
        return [
            name
            for name, path in files.items()
            if path.exists() and sha256_of(path) != before[name]
        ]

    def _check_files(self, files: Mapping[str, Any], absent: Collection[str]) -> None:
        """Refuse files unless they belong to exactly the parties that predict."""
        known = self.config.files
        if not known:
            raise DataError(
                f"{self.path} was not trained on files of the parties' own: give the rows alone, "
                "as .npy, or .csv of numbers"
            )
        if strangers := [name for name in files if name not in known]:
            raise DataError("; ".join(unknown(n, known, "in this run", "party") for n in strangers))
        if both := [name for name in files if name in absent]:
            raise DataError(f"{', '.join(both)}: absent, and yet rows are given; omit them")
        method = self.config.found.method
        needed = [name for name in known if name not in absent]
        if self.result["parties"] != [POOLED]:
            needed = [name for name in needed if self._preparation(name)[1]]
            if not method.kinds:  # everybody alone, as far as it has learnt anything
                needed = [name for name in needed if self.saved(name)["weights"]]
        missing = [name for name in needed if name not in files and not method.predicts_alone]
        if missing or not files:
            who = ", ".join(missing or needed)
            raise DataError(f"rows of {who} are missing: give --data {who.split(', ')[0]}=FILE")

    def _columns(self, name: str) -> tuple[Column, ...]:
        preparation, _ = self._preparation(name)
        return () if preparation is None else preparation.columns

    def prepared(self, name: str, x: Any) -> Tensor:
        """Rows of a party as its models take them; of a DataFrame, the columns of training."""
        columns = self._columns(name)
        if columns and hasattr(x, "columns") and hasattr(x, "dtypes"):
            if missing := [column.name for column in columns if column.name not in x.columns]:
                raise DataError(f"'{name}' was trained on columns that are missing: {missing}")
            x = x[[column.name for column in columns]]
        with of(name):
            given, _ = data.from_arrays(x, like=columns or None)
        return self._prepared(name, given)

    def _prepared(self, name: str, x: Tensor) -> Tensor:
        preparation, shape = self._preparation(name)
        if preparation is None:
            return torch.empty(len(x), 0)
        with of(name):
            prepared = preparation.apply(as_image(x))
        if list(prepared.shape[1:]) != shape:
            raise DataError(
                f"'{name}' was trained on rows of shape {tuple(shape)}, given "
                f"{tuple(prepared.shape[1:])}"
            )
        return prepared

    def labels(self) -> Tensor:
        """The true classes, or numbers, of the test rows, which only the label holder knows."""
        self._refuse_in_memory()
        assembly = self._federation()
        y = assembly.parties[assembly.holder].splits["test"].y
        assert y is not None
        return y.cpu()

    def truth(self, predictions: Mapping[str, Prediction]) -> dict[str, Truth]:
        """What is known of the test rows, by who predicts them: its own labels where it has any,
        else the label holder's."""
        self._refuse_in_memory()
        assembly, found = self._federation(), {}
        for name, prediction in predictions.items():
            split = assembly.parties[name].splits["test"]
            split = (
                split if split.y is not None else assembly.parties[assembly.holder].splits["test"]
            )
            values = [] if split.y is None else split.y.tolist()
            classes = prediction.classes
            texts = [classes[value] if classes else repr(value) for value in values]
            found[name] = Truth(texts, split.weights)
        return found

    def _federation(self) -> Assembly:
        """The parties with the rows of the run, read once more."""
        if not self.config.files:
            return from_catalogue(self.config)
        assembly = from_files(self.config)
        for name, common in self._common(assembly).items():
            assembly.parties[name].take(common)
        return assembly

    def _common(self, assembly: Assembly) -> dict[str, Tensor]:
        """Which rows of own files were common, by party."""
        names = {name: p.names for name, p in assembly.parties.items() if p.names}
        return {} if self.config.align is None else common_in_clear(names, self.config.align)

    def _names(self) -> dict[str, list[str]]:
        """What a party with a file of its own calls its rows, by their ids in the run."""
        return names_of(self.config) if self.config.files else {}

    def _refuse_in_memory(self) -> None:
        if self.result["data"]["name"] == IN_MEMORY:
            raise DataError(
                f"{self.path} was trained on in-memory data, which is not kept: give the rows, "
                'predict({"bank": x, …})'
            )

    def _test_rows(self) -> dict[str, tuple[Tensor | None, Tensor]]:
        self._refuse_in_memory()
        assembly = self._federation()
        if not self.config.held_out() and self.config.files:
            raise DataError(
                f"{self.path} kept no test rows (evaluate_every = 0, other rows at each party): "
                "give files of rows that all have, predict … --data NAME=FILE"
            )
        # Already prepared with the same statistics that were saved with the weights.
        return {
            name: (party.splits["test"].x, party.splits["test"].ids)
            for name, party in assembly.parties.items()
            if party.splits
        }

    def _given_rows(
        self, parties: Mapping[str, Any], absent: Collection[str]
    ) -> dict[str, tuple[Tensor | None, Tensor]]:
        if not isinstance(parties, Mapping):
            raise DataError('give the rows by party name, {"bank": x, "shop": x}')
        if self.result["parties"] == [POOLED] and POOLED not in parties:
            parties = {POOLED: pooled(parties, pooled_columns(self._columns(POOLED)))}
        strangers = [name for name in parties if name not in self.result["parties"]]
        if strangers:
            known = self.result["parties"]
            raise DataError("; ".join(unknown(n, known, "in this run", "party") for n in strangers))
        if both := [name for name in parties if name in absent]:
            raise DataError(f"{', '.join(both)}: absent, and yet rows are given; omit them")
        rows: dict[str, tuple[Tensor | None, Tensor]] = {}
        for name, x in parties.items():
            if isinstance(x, tuple):
                raise DataError(f"party '{name}': predict takes features alone, not (x, y)")
            preparation, shape = self._preparation(name)
            if preparation is None or not shape:
                raise DataError(f"'{name}' took part without features; give none for it")
            with of(name):
                given, _ = data.from_arrays(x, like=preparation.columns or None)
            rows[name] = self._prepared(name, given), torch.arange(len(given))
        aligned = self.config.found.method.rows.aligned(self.config.options)
        if aligned and len({len(ids) for _, ids in rows.values()}) > 1:
            counts = ", ".join(f"'{name}' {len(ids)}" for name, (_, ids) in rows.items())
            raise DataError(f"the parties give different numbers of rows: {counts}")
        missing = [
            name
            for name in self.result["parties"]
            if name not in rows
            and name not in absent
            and self._preparation(name)[1]
            and (aligned or self.saved(name)["weights"])  # else it never learnt anything
        ]
        if missing:
            raise DataError(f"rows of {', '.join(missing)} are missing: all parties take part")
        count = len(next(iter(rows.values()))[1]) if rows else 0
        if not count:
            raise DataError("there are no rows to predict: give at least one")
        for name in self.result["parties"]:
            if name not in rows and name not in absent and not self._preparation(name)[1]:
                rows[name] = torch.empty(count, 0), torch.arange(count)
        return rows

    def _party(
        self, name: str, rows: tuple[Tensor | None, Tensor] | None, saved: Mapping[str, Any]
    ) -> Party:
        run = self.config.run
        preparation, _ = self._preparation(name)
        splits = {}
        if rows is not None:
            x, ids = rows
            assert x is not None
            splits[SPLIT] = Split(x, None, ids)
        party = Party(
            name,
            self.result["roles"][name],
            self.config.parties.get(name, self.config.recipe),
            replace(schedule_of(self.config), all_rows=False, patience=0),
            splits,
            preparation,
            self._task(),
            torch.device(run.device if torch.cuda.is_available() else "cpu"),
            View.of(saved["view"]) if saved["view"] else None,
        )
        party.kept.load(saved["weights"])
        noise_seed = self.config.protect.simulate_noise_seed
        party.journal = RunJournal.in_folder(self.path, name, noise_seed)
        protect(party, self.config.protect)
        return party

    def _task(self) -> Task:
        """What the run has learnt; of older runs only the classes are written down."""
        known = self.result["data"]
        told = known.get("task")
        return heard(self.config, told) if told else task_for(self.config, known["classes"])

    def saved(self, name: str) -> dict[str, Any]:
        """What a party has trained, and how its rows are prepared."""
        again = f"train again: colonnade run {self.path / 'config.toml'}"
        return folders.load_weights(self.path / "weights", name, again)

    def _preparation(self, name: str) -> tuple[Preparation | None, list[int]]:
        saved = self.saved(name)
        columns = tuple(Column(n, tuple(known), may) for n, known, may in saved["columns"])
        if saved["preparation"] is None:
            return None, saved["shape"]
        return Preparation.from_tensors(saved["preparation"], columns), saved["shape"]


def load(path: str | Path) -> Trained:
    """A finished run, by its folder."""
    folder = Path(path)
    result = read(folder).content
    if not (folder / "weights").exists():
        raise RunError(
            f"{folder} is {result.get('status', 'unfinished')}: it has no trained models. Finish "
            f"it with: {folders.command_for(folder)}"
        )
    report.check(result)
    config = folders.settings_of(folder)
    if not config.found.method.rows.all_rows:  # there the task party predicts alone
        folders.check_of_all(folder)
    if config.found.method.rows.ids_only:
        raise RunError(f"{folder} only aligned rows, and trained nothing: see colonnade run")
    return Trained(folder, result, config)


def _touched(path: Path) -> Path:
    path.touch()
    return path
