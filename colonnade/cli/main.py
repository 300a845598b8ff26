"""The command line: arguments in, library calls, text out."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import colonnade
from colonnade import data, methods, report, reproduce
from colonnade.cli import align, certs, demo, doctor, nvflare, party
from colonnade.cli.progress import Progress
from colonnade.deploy.supervisor import Options
from colonnade.errors import ColonnadeError, DataError, InputError, RunError
from colonnade.report import units
from colonnade.results.observer import Observer
from colonnade.results.result import Result, read_json
from colonnade.runs import predict
from colonnade.runs.run import run
from colonnade.wire import ledger
from colonnade.wire.reconcile import reconcile

SHOWN = 10  # rows of each sort that fit a screen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 is success, 2 a mistake in the input, 1 a failure, 130 Ctrl-C."""
    parsed = parser().parse_args(arguments)
    errors = Console(stderr=True, highlight=False)
    try:
        code: int | None = parsed.command(parsed)
    except ColonnadeError as error:
        if parsed.traceback:
            raise
        errors.print(Text(f"{type(error).__name__}: {error}{_notes(error)}"), soft_wrap=True)
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt as stop:
        errors.print(Text("stopped" + _notes(stop)), soft_wrap=True)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has left; there is nobody to tell
        return 1
    return code or 0


def _notes(error: BaseException) -> str:
    return "".join(f"\n  {note}" for note in getattr(error, "__notes__", []))


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="colonnade",
        description="Vertical and hybrid federated learning with deep models.",
    )
    top.add_argument("--version", action="version", version=f"colonnade {colonnade.__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    sub = _command(commands, "demo", _demo, "a first run on real data, with baselines and a report")
    sub.add_argument("--out", type=Path, default=Path("runs/demo"), metavar="DIR")

    sub = _command(commands, "run", _run, "train one configuration")
    sub.add_argument(
        "file", type=Path, nargs="?", metavar="FILE", help="a TOML file; not needed to resume"
    )
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a setting, such as epochs=3 or splitnn.cut=sum",
    )
    sub.add_argument(
        "--runtime",
        choices=["local", "process", "nvflare"],
        help="all parties in this process (the default), one process each over mutual TLS, or the "
        "same as a job of NVFlare",
    )
    sub.add_argument(
        "--restarts", type=_count, default=3, metavar="N", help="of a process that died"
    )
    sub.add_argument(
        "--on-lost",
        choices=["wait", "stop", "continue"],
        default="wait",
        help="what to do about a party that does not come back",
    )
    sub.add_argument(
        "--deadline", type=float, default=60.0, metavar="S", help="how long it is waited for"
    )
    sub.add_argument("--out", type=Path, metavar="DIR", help="default: runs/<name>")
    sub.add_argument("--overwrite", action="store_true", help="replace an older run there")
    sub.add_argument("--resume", type=Path, metavar="DIR", help="go on with a stopped run")
    sub.add_argument("--device", choices=["cpu", "cuda"])

    sub = _command(commands, "predict", _predict, "predictions of a trained run")
    sub.add_argument("run", type=Path, metavar="RUN")
    sub.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="PARTY=FILE",
        help="new rows of one party (.npy or .csv; with ids, if the run was on own files); "
        "default: the run's test rows",
    )
    sub.add_argument(
        "--absent",
        action="append",
        default=[],
        metavar="NAME",
        help="do without this passive party; may be repeated",
    )
    sub.add_argument("--out", type=Path, metavar="FILE", help="default: RUN/predictions.csv")

    _command(commands, "methods", _methods, "the methods there are")

    sub = _command(commands, "data", _data, "the data sets there are")
    sub.add_argument("action", choices=["list", "fetch", "check"], nargs="?", default="list")
    sub.add_argument("name", nargs="?", metavar="NAME")

    sub = _command(commands, "compare", _compare, "several runs side by side")
    sub.add_argument("runs", nargs="+", type=Path, metavar="RUN")

    sub = _command(commands, "report", _report, "one self-contained HTML file")
    sub.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the first is the main one")
    sub.add_argument("--out", type=Path, metavar="FILE", help="default: report.html of the first")

    sub = _command(commands, "reproduce", _reproduce, "a paper's table: ours against theirs")
    sub.add_argument(
        "name", nargs="?", metavar="NAME", help="a table, or a TOML file; without it, what there is"
    )
    size = sub.add_mutually_exclusive_group()
    size.add_argument(
        "--fast", action="store_true", help="minutes, checks orders only (the default)"
    )
    size.add_argument("--full", action="store_true", help="the paper's settings")
    sub.add_argument("--seeds", type=_positive, metavar="N", help="0 to N-1; default: the table's")
    sub.add_argument("--jobs", type=_positive, metavar="J", help="runs at once; default: cores")
    sub.add_argument("--device", choices=["cpu", "cuda"], help="default of --full: cuda if any")
    sub.add_argument("--out", type=Path, metavar="DIR", help="default: runs/reproduce/<name>-fast")
    sub.add_argument(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="a part: data=…, splits=…, columns=…, rows=…, blocks=…",
    )
    sub.add_argument(
        "--reuse",
        nargs="+",
        action="extend",
        default=[],
        type=Path,
        metavar="DIR",
        help="take equal runs from the folders of other tables",
    )

    sub = _command(commands, "ledger", _ledger, "what left each party")
    sub.add_argument("run", type=Path, nargs="?", metavar="RUN")
    sub.add_argument(
        "--reconcile",
        type=Path,
        nargs=2,
        metavar=("A", "B"),
        help="compare two parties' run folders or ledgers: what one sent, the other received",
    )
    align.add(commands, _command)
    certs.add(commands, _command)
    party.add(commands, _command)
    doctor.add(commands, _command)
    nvflare.add(commands, _command, _finish)
    return top


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number from 1")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: give a whole number from 0")
    return int(text)


def _command(commands: Any, name: str, function: Any, summary: str) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary)
    sub.set_defaults(command=function)
    sub.add_argument("--json", action="store_true", help="print JSON, nothing else")
    sub.add_argument("--quiet", action="store_true", help="print as little as possible")
    sub.add_argument("--traceback", action="store_true", help="show where an error came from")
    return sub


def _console(arguments: argparse.Namespace) -> Console:
    return Console(highlight=False, quiet=arguments.json or arguments.quiet)


def _say(text: str) -> None:
    """The one thing a quiet command still prints."""
    sys.stdout.write(text + "\n")


def _demo(arguments: argparse.Namespace) -> None:
    console = _console(arguments)

    def observer(label: str) -> Observer:
        return Progress(console, label)

    console.print(
        "Real handwritten digits, cut into quarters; four parties, each holding one of them.\n"
    )
    results = demo.demo(arguments.out, observer)
    _finish(arguments, console, results)


def _run(arguments: argparse.Namespace) -> None:
    console = _console(arguments)
    overrides = list(arguments.overrides)
    if arguments.device:
        overrides.append(f"device={arguments.device}")
    file = arguments.file
    if file is None:
        if arguments.resume is None:
            raise RunError("colonnade run: give a FILE, or --resume DIR to go on with a run")
        file = arguments.resume / "config.toml"
    result = run(
        file,
        overrides=overrides,
        out=arguments.out,
        resume=arguments.resume,
        overwrite=arguments.overwrite,
        observer=Progress(console),
        runtime=arguments.runtime,
        processes=Options(arguments.restarts, arguments.on_lost, arguments.deadline),
    )
    _finish(arguments, console, [result])


def _finish(arguments: argparse.Namespace, console: Console, results: list[Result]) -> None:
    """The table, the sentence, and where the report lies."""
    contents = [result.content for result in results]
    first = results[0]
    page = report.write_report(contents, first.path / "report.html", [r.path for r in results])
    if arguments.json:
        _say(json.dumps(first.content, indent=1))
    console.print()
    console.print(report.summary(contents))
    console.print(Text(report.sentences(first.content)))
    for warning in first.content["warnings"]:
        console.print(Text(f"warning: {warning}"))
    console.print(Text(f"\nresult  {first.path / 'result.json'}\nreport  {page}"), soft_wrap=True)
    if arguments.quiet and not arguments.json:
        _say(str(first.path))


def _predict(arguments: argparse.Namespace) -> None:
    console = _console(arguments)
    trained = predict.load(arguments.run)
    rows = _new_rows(arguments, trained)
    warnings = [] if rows is not None else _changed(trained)
    predictions = trained.predict(rows, arguments.absent)
    truth = _truth(rows, trained, predictions)
    out = arguments.out or arguments.run / "predictions.csv"
    _write_predictions(predictions, truth, out)
    table = Table("Party", "Rows", "Accuracy", box=None)
    shown = []
    for name, prediction in predictions.items():
        pairs = zip(prediction.labels, truth.get(name, ()), strict=name in truth)
        hits = [label == true for label, true in pairs if true]
        right = sum(hits) / len(hits) if hits else None
        table.add_row(name, str(len(prediction)), "" if right is None else units.percent(right))
        shown.append({"party": name, "rows": len(prediction), "accuracy": right})
    console.print(table)
    left_out = dict(rows.left_out) if isinstance(rows, predict.NewRows) else {}
    for name, count in left_out.items():
        if count:
            console.print(
                f"{units.count(count)} rows of {name} are not predicted: not all have them"
            )
    for warning in warnings:
        console.print(Text(f"warning: {warning}"))
    console.print(Text(f"\npredictions  {out}"), soft_wrap=True)
    if arguments.json:
        content = {"predictions": str(out), "parties": shown, "left_out": left_out}
        _say(json.dumps(content | {"warnings": warnings}))
    elif arguments.quiet:
        _say(str(out))


def _truth(
    rows: Any, trained: predict.Trained, predictions: Mapping[str, predict.Prediction]
) -> Mapping[str, Sequence[str]]:
    """The true labels, by who predicts; "" where there is none."""
    if isinstance(rows, predict.NewRows):
        return rows.truth
    if rows is not None:
        return {}
    codes = trained.labels().tolist()
    return {name: [found.classes[code] for code in codes] for name, found in predictions.items()}


def _new_rows(arguments: argparse.Namespace, trained: predict.Trained) -> Any:
    """The rows that --data names: files with ids, of a run on such; else arrays."""
    named: dict[str, Path] = {}
    for text in arguments.data:
        name, equals, file = text.partition("=")
        if not equals:
            raise DataError(f"--data {text}: write PARTY=FILE, for example bank=bank.npy")
        named[name] = Path(file)
    if trained.config.files and not all(path.suffix == ".npy" for path in named.values()):
        return trained.read_files(named, arguments.absent)
    return {name: _rows(path, f"--data {name}={path}") for name, path in named.items()} or None


def _changed(trained: predict.Trained) -> list[str]:
    return [
        f"the file of '{name}' has changed since the training, so these are other test rows"
        for name in trained.changed()
    ]


def _rows(path: Path, text: str) -> Any:
    import numpy as np

    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        with path.open(encoding="utf-8-sig") as lines:
            rows = list(lines)
        start = 0 if rows and _has_number(rows[0]) else 1  # a header is text alone
        return np.loadtxt(rows[start:], delimiter=",", ndmin=2, dtype=np.float32)
    except OSError as error:
        raise DataError(f"{text}: {error.strerror or error}") from None
    except ValueError as error:
        raise DataError(
            f"{text}: {error}. Give a .npy array, or a .csv of numbers, with or without a "
            "header line"
        ) from None


def _has_number(line: str) -> bool:
    for cell in line.split(","):
        try:
            float(cell)
        except ValueError:
            continue
        return True
    return False


def _write_predictions(
    predictions: Mapping[str, predict.Prediction], truth: Mapping[str, Sequence[str]], out: Path
) -> None:
    try:
        with out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            label = ["label"] if truth else []
            writer.writerow(["party", "id", "predicted", "probability", *label])
            for name, prediction in predictions.items():
                best = prediction.probabilities.max(1).values.tolist()
                ids, labels = prediction.names or prediction.ids.tolist(), prediction.labels
                known = truth.get(name, [""] * len(labels)) if truth else ()
                for number, (row, predicted, share) in enumerate(
                    zip(ids, labels, best, strict=True)
                ):
                    end = [known[number]] if known else []
                    writer.writerow([name, row, predicted, f"{share:.6f}", *end])
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror}") from None


def _methods(arguments: argparse.Namespace) -> None:
    found = [methods.find(name).method for name in methods.names()]
    if arguments.json:
        rows = [
            {"name": m.name, "summary": m.summary, "reference": m.about.reference} for m in found
        ]
        _say(json.dumps(rows))
        return
    table = Table("Method", "What it is", "Roles", "Messages", box=None)
    for method in found:
        kinds = ", ".join(kind.name for kind in method.kinds) or "none"
        table.add_row(method.name, method.summary, ", ".join(method.roles), kinds)
    _console(arguments).print(table)


def _data(arguments: argparse.Namespace) -> None:
    console = _console(arguments)
    if arguments.action == "list":
        rows = data.available()
        if arguments.json:
            _say(json.dumps([vars(row) for row in rows]))
            return
        for row in rows:
            size = units.size(row.bytes) if row.bytes else ""
            line = f"{row.name:20} {row.status:14} {size:>8}  {row.description}"
            if row.status in ("can be fetched", "place by hand"):
                line += f"\n{'':21}{row.where}"
            console.print(Text(line), soft_wrap=True)
        return
    if not arguments.name:
        raise DataError(f"colonnade data {arguments.action}: which one? See colonnade data list")
    if arguments.action == "fetch":
        here = [row for row in data.available() if row.name == arguments.name]
        if here and here[0].status in ("here", "embedded"):
            folder = here[0].where
        else:
            folder = str(data.fetch(arguments.name))
        if arguments.json:
            _say(json.dumps({"folder": str(folder)}))
        console.print(Text(f"'{arguments.name}' lies in {folder}"), soft_wrap=True)
        return
    checked = data.check(arguments.name)
    if arguments.json:
        _say(json.dumps([{"path": str(c.path), "verdict": c.verdict} for c in checked]))
    for one in checked:
        console.print(Text(f"{one.verdict:12} {one.path}"), soft_wrap=True)
    if any(one.verdict == "wrong" for one in checked):
        raise data_corrupt(arguments.name)


def data_corrupt(name: str) -> DataError:
    return DataError(f"'{name}': a file is not the published one; fetch or place it again")


def _results(runs: Sequence[Path]) -> list[dict[str, Any]]:
    results = [read_json(path / "result.json") for path in runs]
    for result in results:
        report.check(result)
    return results


def _compare(arguments: argparse.Namespace) -> None:
    results = _results(arguments.runs)
    if arguments.json:
        _say(report.as_json(results))
    console = _console(arguments)
    console.print(report.comparison(results))
    data = {tuple(r["data"][key] for key in ("name", "train_rows", "test_rows")) for r in results}
    if len(data) > 1:
        kinds = "; ".join(f"{name}, {train} + {test} rows" for name, train, test in sorted(data))
        console.print(Text(f"warning: the runs are of different data ({kinds})"), soft_wrap=True)


def _report(arguments: argparse.Namespace) -> None:
    results = _results(arguments.runs)
    out = arguments.out or arguments.runs[0] / "report.html"
    try:
        page = report.write_report(results, out, arguments.runs)
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror}") from None
    if arguments.json:
        _say(json.dumps({"report": str(page)}))
    else:
        _say(str(page))


def _ledger(arguments: argparse.Namespace) -> int:
    if (arguments.run is None) == (arguments.reconcile is None):
        raise RunError("colonnade ledger: give either a RUN, or --reconcile A B")
    if arguments.reconcile is not None:
        return _reconcile(arguments)
    path = arguments.run / "ledger.jsonl"
    (result,) = _results([arguments.run])
    if not path.exists():
        raise RunError(f"{arguments.run} has no ledger")
    rows = ledger.read(path, result["wire"].get("head"))  # reading checks the chain
    wire = ledger.summarise(rows, {})
    for name, kind in wire["by_kind"].items():
        declared = result["wire"]["by_kind"].get(name, {})
        kind |= {key: declared[key] for key in ("shape", "dtype", "reveals") if key in declared}
    if arguments.json:
        _say(json.dumps(wire))
        return 0
    console = _console(arguments)
    console.print(report.flows_table(wire["flows"], result["wire"]["by_kind"]))
    console.print(
        f"{units.count(wire['messages'])} messages, {units.size(wire['bytes'])}; "
        "the chain of hashes holds"
    )
    return 0


def _reconcile(arguments: argparse.Namespace) -> int:
    """Two ledgers side by side; 1 where they do not fit."""
    found = reconcile(*arguments.reconcile)
    one, other = found.owners
    if not found.matched and not found.unreceived and not found.faults:
        raise RunError(f"nothing to compare: '{one}' and '{other}' record no message between them")
    lines = [f"{one} and {other}"]
    if not found.broken:
        lines.append(
            f"  matched              {units.count(found.matched)}, {units.size(found.bytes)}"
        )
    for what, rows in (("sent, not received", found.unreceived), ("never sent", found.unsent)):
        lines += [f"  {what:20} {len(rows)}"] if rows else []
        lines += [f"    {_row(row)}" for row in rows[:SHOWN]]
    for mine, its in found.different[:SHOWN]:
        lines += [f"  different            {_row(mine)}"]
        lines += [
            f"    {part:18} {mine[part]} at {one}, {its[part]} at {other}"
            for part in mine
            if part != "row" and mine[part] != its[part]
        ]
    if len(found.different) > SHOWN:
        lines.append(f"  different            {len(found.different) - SHOWN} more")
    lines += [f"fault: {fault}" for fault in found.faults]
    if not found.faults:
        why = "; what did not arrive was done again, or is of an unfinished run"
        lines.append(f"the two ledgers agree{why if found.unreceived else ''}")
    if arguments.json:
        _say(json.dumps(found.content()))
    _console(arguments).print(Text("\n".join(lines)), soft_wrap=True)
    return 1 if found.faults else 0


def _row(row: Mapping[str, Any]) -> str:
    return (
        f"{row['sender']} → {row['receiver']}, {row['kind']} {row['sequence']} of attempt "
        f"{row['attempt']}: {units.count(row['bytes'])} bytes (row {row['row']})"
    )


def _reproduce(arguments: argparse.Namespace) -> None:
    console = _console(arguments)
    if arguments.name is None:
        rows = reproduce.shelf()
        if arguments.json:
            _say(json.dumps(rows))
        reproduce.show_shelf(rows, console)
        return
    request = reproduce.Request(
        arguments.name,
        size="full" if arguments.full else "fast",
        seeds=arguments.seeds,
        only=tuple(arguments.only),
        jobs=arguments.jobs,
        device=arguments.device,
        out=arguments.out,
        reuse=tuple(arguments.reuse),
    )
    content, folder = reproduce.reproduce(request, reproduce.Screen(console))
    reproduce.show(content, console)
    table, page = folder / "table.md", folder / "report.html"
    console.print(Text(f"\ntable   {table}\nreport  {page}"), soft_wrap=True)
    if arguments.json:
        _say(json.dumps(content))
    elif arguments.quiet:
        _say(str(folder))
    reproduce.check(content, folder)


if __name__ == "__main__":
    sys.exit(main())
