"""What can be typed: every command with its arguments, and the module that carries it out.

Nothing here may import PyTorch, nor anything that does: the help must come at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from colonnade.deploy.nvflare.defaults import ADMIN, SERVER
from colonnade.net.certs import AUTHORITY_DAYS, PARTY_DAYS
from colonnade.net.register import LIST_DAYS
from colonnade.version import __version__

RUNTIMES = ["local", "process", "nvflare"]


def parser() -> argparse.ArgumentParser:
    """All commands, in the order in which the help lists them."""
    top = argparse.ArgumentParser(
        prog="colonnade",
        description="Vertical and hybrid federated learning with deep models.",
    )
    top.add_argument("--version", action="version", version=f"colonnade {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _demo(commands)
    _run(commands)
    _predict(commands)
    _command(commands, "methods", "methods", "the methods there are")
    _data(commands)
    _compare(commands)
    _report(commands)
    _reproduce(commands)
    _ledger(commands)
    _privacy(commands)
    _align(commands)
    _certs(commands)
    _trust(commands)
    _party(commands)
    _doctor(commands)
    _nvflare(commands)
    return top


def _command(
    commands: Any, name: str, module: str, summary: str, function: str = "main"
) -> argparse.ArgumentParser:
    """A command that `function` of colonnade/cli/<module>.py carries out."""
    sub: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary)
    sub.set_defaults(module=module, function=function)
    sub.add_argument("--json", action="store_true", help="print JSON, nothing else")
    sub.add_argument("--quiet", action="store_true", help="print as little as possible")
    sub.add_argument("--traceback", action="store_true", help="show where an error came from")
    return sub


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number from 1")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: give a whole number from 0")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a number between 0 and 1, such as 1e-5")
    return share


def _demo(commands: Any) -> None:
    summary = "a first run on real data, with baselines and a report"
    sub = _command(commands, "demo", "demo", summary)
    sub.add_argument("--out", type=Path, default=Path("runs/demo"), metavar="DIR")


def _run(commands: Any) -> None:
    sub = _command(commands, "run", "run", "train one configuration")
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
        choices=RUNTIMES,
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
    sub.add_argument(
        "--seeds",
        type=_positive,
        metavar="N",
        help="one run for each of N seeds from the file's on, in runs/<name>-seeds; finished ones "
        "are not made again",
    )
    sub.add_argument("--device", choices=["cpu", "cuda"])


def _predict(commands: Any) -> None:
    sub = _command(commands, "predict", "predict", "predictions of a trained run")
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
    sub.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="default: RUN/predictions.csv; if that is there, predictions-2.csv",
    )
    sub.add_argument("--overwrite", action="store_true", help="replace an older file of that name")


def _data(commands: Any) -> None:
    sub = _command(commands, "data", "data", "the data sets there are")
    sub.add_argument("action", choices=["list", "fetch", "check"], nargs="?", default="list")
    sub.add_argument("name", nargs="?", metavar="NAME")


def _compare(commands: Any) -> None:
    sub = _command(commands, "compare", "compare", "several runs side by side")
    sub.add_argument("runs", nargs="+", type=Path, metavar="RUN")


def _report(commands: Any) -> None:
    sub = _command(commands, "report", "report", "one self-contained HTML file")
    sub.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the first is the main one")
    sub.add_argument("--out", type=Path, metavar="FILE", help="default: report.html of the first")


def _reproduce(commands: Any) -> None:
    sub = _command(commands, "reproduce", "reproduce", "a paper's table: ours against theirs")
    sub.add_argument(
        "name", nargs="?", metavar="NAME", help="a table, or a TOML file; without it, what there is"
    )
    size = sub.add_mutually_exclusive_group()
    size.add_argument(
        "--fast", action="store_true", help="minutes, checks orders only (the default)"
    )
    size.add_argument("--full", action="store_true", help="the paper's settings")
    size.add_argument(
        "--missing",
        action="store_true",
        help="make what no record has of all tables (or of NAME's), at full size, cheapest first",
    )
    sub.add_argument(
        "--recorded", action="store_true", help="with --full: fill the table, and train nothing"
    )
    sub.add_argument("--list", action="store_true", help="with --missing: only say what is missing")
    sub.add_argument(
        "--minutes", type=_positive, metavar="M", help="with --missing: end after this time"
    )
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


def _ledger(commands: Any) -> None:
    sub = _command(commands, "ledger", "ledger", "what left each party")
    sub.add_argument("run", type=Path, nargs="?", metavar="RUN")
    sub.add_argument(
        "--reconcile",
        type=Path,
        nargs=2,
        metavar=("A", "B"),
        help="compare two parties' run folders or ledgers: what one sent, the other received",
    )
    sub.add_argument(
        "--export",
        type=Path,
        metavar="FILE",
        help="write every message and every control step of RUN as JSON Lines, for an audit",
    )


def _privacy(commands: Any) -> None:
    summary = "what all runs have spent of the privacy of a data set"
    sub = _command(commands, "privacy", "privacy", summary)
    sub.add_argument(
        "data", type=Path, metavar="DATA", help="a party's own file, a journal, or a run folder"
    )
    sub.add_argument("--name", metavar="PARTY", help="whose file it is")
    sub.add_argument("--federation", type=Path, metavar="FILE", help="as for colonnade party")
    sub.add_argument("--policy", type=Path, metavar="FILE", help="its limit, and its journal")
    sub.add_argument("--id", metavar="COLUMN", help="what tells its rows apart; default: id")
    sub.add_argument("--delta", type=_share, metavar="δ", help="default: the policy's, or 1e-5")


def _align(commands: Any) -> None:
    sub = _command(commands, "align", "align", "find the rows that all parties have, privately")
    sub.add_argument(
        "file", type=Path, metavar="FILE", help="a run file; or a federation file, with --name"
    )
    sub.add_argument("--out", type=Path, metavar="DIR", help="default: runs/<name>-align")
    sub.add_argument("--overwrite", action="store_true", help="replace an older one there")
    sub.add_argument(
        "--runtime",
        choices=RUNTIMES,
        help="of a run file; see colonnade run",
    )
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a setting of a run file, such as align.minimum=100",
    )
    sub.add_argument("--name", metavar="PARTY", help="take part in a federation, as this party")
    _add_data(sub)
    sub.add_argument("--keys", type=Path, metavar="DIR", help="as for colonnade party")
    sub.add_argument("--policy", type=Path, metavar="FILE", help="as for colonnade party")


def _certs(commands: Any) -> None:
    summary = "an authority for a federation, and its parties' certificates"
    top = commands.add_parser("certs", help=summary, description=summary)
    actions = top.add_subparsers(title="actions", metavar="ACTION", required=True)

    sub = _command(actions, "init", "certs", "a new authority; its key stays in DIR", "init")
    sub.add_argument("folder", type=Path, metavar="DIR")
    sub.add_argument("--name", default="Colonnade authority", metavar="TEXT")
    sub.add_argument("--days", type=int, default=AUTHORITY_DAYS, metavar="N")

    sub = _command(
        actions, "request", "certs", "a party's keys, and its request for a certificate", "request"
    )
    sub.add_argument("folder", type=Path, metavar="DIR", help="where the keys are made, and stay")
    sub.add_argument("--party", required=True, metavar="NAME")

    sub = _command(actions, "issue", "certs", "a certificate, as the authority in DIR", "issue")
    sub.add_argument("folder", type=Path, metavar="DIR", help="of the authority")
    sub.add_argument(
        "request", type=Path, nargs="?", metavar="REQUEST.csr", help="what the party sent"
    )
    sub.add_argument(
        "--party", metavar="NAME", help="make its keys too, in DIR/NAME: all on one machine"
    )
    sub.add_argument("--name", metavar="NAME", help="whose request that is, to the best you know")
    sub.add_argument(
        "--replace", action="store_true", help="although the party has one for another key"
    )
    sub.add_argument("--days", type=int, default=PARTY_DAYS, metavar="N")
    sub.add_argument(
        "--host",
        nargs="+",
        action="extend",
        default=[],
        metavar="H",
        help="names or addresses of the party's machine, for tools that check them",
    )

    sub = _command(
        actions,
        "revoke",
        "certs",
        "sign the next list of certificates that count no more",
        "revoke",
    )
    sub.add_argument("folder", type=Path, metavar="DIR", help="of the authority")
    sub.add_argument(
        "what",
        nargs="?",
        metavar="PARTY",
        help="whose certificates, or the serial of one; without it: the same list, for longer",
    )
    sub.add_argument("--days", type=int, default=LIST_DAYS, metavar="N", help="until the next list")

    sub = _command(actions, "issued", "certs", "what the authority in DIR has issued", "issued")
    sub.add_argument("folder", type=Path, metavar="DIR", help="of the authority")

    sub = _command(actions, "show", "certs", "what certificates and signing keys say", "show")
    sub.add_argument("files", type=Path, nargs="+", metavar="FILE", help=".pem or .sign")


def _trust(commands: Any) -> None:
    summary = "approve code that somebody else has sent; without approval nothing executes it"
    sub = _command(commands, "trust", "trust", summary)
    sub.add_argument("files", type=Path, nargs="+", metavar="FILE.py", help="a method or a network")
    sub.add_argument("--yes", action="store_true", help="do not ask")


def _party(commands: Any) -> None:
    sub = _command(commands, "party", "party", "take part in a federation as one party")
    sub.add_argument("--federation", type=Path, required=True, metavar="FILE")
    sub.add_argument("--name", required=True, metavar="PARTY", help="who this is")
    _add_data(sub)
    sub.add_argument(
        "--keys", type=Path, metavar="DIR", help="default: keys/ beside the federation file"
    )
    sub.add_argument("--policy", type=Path, metavar="FILE", help="what may leave; TOML")
    sub.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="default: runs/<federation>-<party>; with --predict, the file of predictions",
    )
    sub.add_argument("--device", choices=["cpu", "cuda"])
    sub.add_argument(
        "--aligned",
        type=Path,
        metavar="DIR",
        help="train on the rows that `colonnade align` has found; all others must say so too",
    )
    sub.add_argument(
        "--predict",
        type=Path,
        metavar="RUN",
        help="predict with the models of this run; it must be finished, unless its method lets "
        "parties come and go",
    )
    sub.add_argument(
        "--absent",
        action="append",
        default=[],
        metavar="PARTY",
        help="predict without this party; all others must say so too",
    )
    sub.add_argument(
        "--overwrite",
        action="store_true",
        help="with --predict, replace an older file of predictions",
    )
    sub.add_argument("--events", action="store_true", help=argparse.SUPPRESS)


def _doctor(commands: Any) -> None:
    sub = _command(
        commands,
        "doctor",
        "doctor",
        "check a run file; a federation file, and one party; or the site.toml of a startup kit",
    )
    sub.add_argument("federation", type=Path, metavar="FILE")
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a setting of a run file, as for colonnade run",
    )
    sub.add_argument("--name", metavar="PARTY", help="check what this party brings, too")
    sub.add_argument(
        "--keys", type=Path, metavar="DIR", help="default: keys/ beside the federation file"
    )
    _add_data(sub)
    sub.add_argument("--policy", type=Path, metavar="FILE", help="what may leave; TOML")
    sub.add_argument("--out", type=Path, metavar="DIR", help="default: runs/<federation>-<party>")


def _nvflare(commands: Any) -> None:
    summary = "a federation as jobs of the engine NVFlare"
    top = commands.add_parser("nvflare", help=summary, description=summary)
    actions = top.add_subparsers(title="actions", metavar="ACTION", required=True)

    sub = _command(
        actions, "provision", "nvflare", "the project file and startup kits", "provision"
    )
    sub.add_argument("federation", type=Path, metavar="FILE", help="the federation file")
    sub.add_argument("--out", type=Path, metavar="DIR", help="default: kits/ beside the file")
    sub.add_argument(
        "--server",
        default="",
        metavar="HOST:PORT",
        help="the engine's server, as all sites see it; default: that of the kits which are there, "
        f"or {SERVER}",
    )
    sub.add_argument(
        "--state",
        default="",
        metavar="DIR",
        help="where the server keeps jobs, on its machine; default: /var/tmp/nvflare-<federation>",
    )
    sub.add_argument(
        "--admin", default=ADMIN, metavar="NAME", help="who submits; like an e-mail address"
    )

    sub = _command(
        actions, "submit", "nvflare", "train: submit, follow, fetch the results", "submit"
    )
    sub.add_argument(
        "federation",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="the federation file; not needed to resume",
    )
    sub.add_argument(
        "--kit", type=Path, metavar="DIR", help=f"default: kits/{ADMIN} beside the file"
    )
    sub.add_argument("--out", type=Path, metavar="DIR", help="default: runs/<federation>")
    sub.add_argument("--overwrite", action="store_true", help="replace an older run there")
    sub.add_argument("--resume", type=Path, metavar="RUN", help="go on with a job that was aborted")
    sub.add_argument(
        "--relay",
        action="store_true",
        default=None,
        help="for sites that open no port: connections pass, sealed, through the engine",
    )


def _add_data(sub: argparse.ArgumentParser) -> None:
    """Where a party's rows are, and which columns are what."""
    sub.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="its own rows, .csv, .parquet or .npz; or a .toml that names them and their columns",
    )
    sub.add_argument("--id", metavar="COLUMN", help="what tells its rows apart; default: id")
    sub.add_argument("--label", metavar="COLUMN", help="of the label holder; default: label")
    sub.add_argument("--weight", metavar="COLUMN", help="how much its rows count in training")
