"""A site: one call of the engine that plays the site's role, with the code of `colonnade party`.

The role runs in the process that the engine starts for the job. What it needs of the site lies in
the site's own files; what goes back through the engine are numbers about the training, a log, and
digests of the weights. The weights, like the rows, stay here. So does what an error says about
them: an id, a cell, a path are in the logs of the site, and the engine learns what kind of error
it was.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo

from colonnade.config import Config, check_name
from colonnade.config.federation import Federation, split_address
from colonnade.deploy import member
from colonnade.deploy.connect import facts_of
from colonnade.deploy.forecast import forbidden
from colonnade.deploy.nvflare import job, sitefile
from colonnade.deploy.nvflare.sitefile import Workplace
from colonnade.deploy.nvflare.tunnel import Tunnel
from colonnade.deploy.setup import Setup
from colonnade.errors import (
    CertificateError,
    ColonnadeError,
    ConfigError,
    DataError,
    FederationError,
    RunError,
    SecurityError,
    WireError,
)
from colonnade.results.observer import Observer, Traffic
from colonnade.results.result import NOT_LOGGED, read_json
from colonnade.role.progress import Meter, Stopped
from colonnade.wire import ledger

METER_SECONDS = 1.0
LOG_BYTES = 64 << 10  # of a site's log: its end
ENTRY = re.compile(r"^(?=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )", re.M)  # where one of the log begins
TOLD = (
    FederationError,
    WireError,
    SecurityError,
)  # of a run: they speak of what all have agreed on
NOT_TOLD = {  # what is said instead; of others, only that the role has failed
    DataError: "its data cannot be used",
    ConfigError: "its settings or its policy cannot be used",
    FederationError: "its federation file or its signing key cannot be used",
    CertificateError: "its certificate or its signing key cannot be used",
    RunError: "its site.toml or the folder of its run cannot be used",
}


class Site(Executor):  # type: ignore[misc]  # NVFlare has no types
    def __init__(self, federation: str, run: str, relay: bool = False) -> None:
        """
        federation  by its name; the site has a file of its own for it
        run         names the folder that is kept; a job that goes on names the same
        relay       whether connections pass through the engine
        """
        super().__init__()
        problems = check_name(federation, "federation") + check_name(run, "run")
        if problems:  # both become folders
            raise ConfigError(problems)
        self._federation, self._run, self._relay = federation, run, relay
        self._setup: Setup | None = None
        self._out = Path()

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        work = {job.CHECK: self._check, job.TAKE_PART: self._take_part}.get(task_name)
        if work is None:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            told = work(fl_ctx, abort_signal)
        except Stopped:
            return make_reply(ReturnCode.TASK_ABORTED)
        except ColonnadeError as error:
            told = {"problem": self._problem(error, fl_ctx)} | self._told_so_far()
        reply = Shareable()
        reply["told"] = json.dumps(told)
        return reply

    def _check(self, fl_ctx: Any, abort_signal: Any) -> dict[str, Any]:
        """What this site has agreed on, and whether it can take part; nothing is written."""
        workspace = fl_ctx.get_engine().get_workspace()
        place = Workplace(
            Path(workspace.get_site_config_dir()),
            Path(workspace.get_startup_kit_dir()),
            Path(workspace.get_root_dir()) / "runs",
        )
        party = job.party_of(fl_ctx.get_identity_name())
        file, folder, shared = sitefile.federation_of(place, self._federation)
        told: dict[str, Any] = {"facts": facts_of(shared)}
        try:
            setup = sitefile.setup_of(place, party, file, folder, shared)
        except ColonnadeError as error:
            return told | {"problem": self._problem(error, fl_ctx)}
        simulated = bool(file.run)  # a site that is there for one run
        self._setup = replace(setup, runtime="nvflare", token=self._run, simulated=simulated)
        self._out = sitefile.run_folder(place, file, folder, self._run)
        denied = forbidden(shared, party, setup.policy, setup.rows)
        why = "; ".join(said for said, _ in denied)
        problem = f"its policy forbids this job: {why}" if why else ""
        if not problem and not self._relay:
            problem = _taken(shared, party)
        return told | ({"problem": problem} if problem else {})

    def _problem(self, error: ColonnadeError, fl_ctx: Any) -> str:
        """All of it to the site's own log; what the engine may know of it."""
        name = type(error).__name__
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", []))
        self.log_error(fl_ctx, f"{name}: {error}{notes}")
        if self._setup is not None and isinstance(error, TOLD):  # its own files were in order
            return f"{name}: {error}"
        why = next((why for kind, why in NOT_TOLD.items() if isinstance(error, kind)), "it failed")
        return f"{why} ({name}); see the log at the site"

    def _take_part(self, fl_ctx: Any, abort_signal: Any) -> dict[str, Any]:
        """Play the role to its end."""
        setup = self._setup
        if setup is None:
            return {"problem": "the server asked to begin before it asked what this site has"}
        with ExitStack() as stack:
            stack.enter_context(_stopped_by(abort_signal))
            if self._relay:
                tunnel = stack.enter_context(
                    Tunnel(setup.federation, setup.name, fl_ctx.get_engine().get_cell())
                )
                setup = replace(setup, addresses=tunnel.addresses)
            self._out.parent.mkdir(parents=True, exist_ok=True)
            observer = _Tell(self, fl_ctx.get_engine())
            member.take_part(setup, self._out, observer, lambda text: self.log_info(fl_ctx, text))
        return self._told_so_far()

    def _told_so_far(self) -> dict[str, Any]:
        """What may be said about the run: of its messages only how many and how large."""
        setup = self._setup
        if setup is None or not (self._out / "result.json").exists():
            return {}
        result = read_json(self._out / "result.json")
        rows = list(ledger.read(self._out / "ledger.jsonl"))
        sent = [row for row in rows if row.get("sender") == setup.name]
        account = self._out / "account.json"
        return {
            "account": read_json(account) if account.exists() else None,
            "wire": ledger.summarise(sent, setup.settings.kinds),
            "rounds": result["wire"]["rounds"],
            "data": result["data"],
            "warnings": result["warnings"],
            "timing": {key: result["timing"][key] for key in ("setup", "seconds_total")},
            "status": result["status"],
            "log": _log_of(self._out),
        }


def _log_of(run: Path) -> str:
    """The end of a run's log, without the errors that stay at a site and without its folders."""
    whole = (run / "log.txt").read_bytes()
    entries = ENTRY.split(whole[-LOG_BYTES:].decode(errors="replace"))
    if len(whole) > LOG_BYTES:
        entries = entries[1:]  # the first was cut
    shown = "|".join(kind.__name__ for kind in _with_subclasses(TOLD))
    hidden = re.compile(rf"\b(?!(?:{shown})\b)(\w+Error|RoleFailed|Data\w+): ")
    kept = [entry for entry in entries if not hidden.search(entry)]
    return "".join(kept).replace(str(run), "(the run's folder)")


def _with_subclasses(kinds: Iterable[type]) -> list[type]:
    return [found for kind in kinds for found in (kind, *_with_subclasses(kind.__subclasses__()))]


def _taken(shared: Federation, party: str) -> str:
    """Whether something else listens where this party is to."""
    if not shared.listens(party):
        return ""
    address = shared.member(party).binds
    try:
        socket.create_server(split_address(address)).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"another run is using {address} here"
    return ""  # anything else is said better by the mesh


class _Tell(Observer):
    """How far the role is, to the engine: for whoever follows, and for its own tracking."""

    def __init__(self, site: Site, engine: Any) -> None:
        self._site, self._engine = site, engine
        self._ended = threading.Event()

    def began(self, config: Config, meters: Mapping[str, Meter], ledger: Traffic) -> None:
        self._ledger = ledger
        self._tell({"began": True})
        ((_, meter),) = meters.items()

        def watch() -> None:
            while not self._ended.wait(METER_SECONDS):
                now = [meter.phase, meter.share, meter.epochs]
                self._tell({"meter": now, "bytes": ledger.bytes})

        threading.Thread(target=watch, daemon=True).start()

    def epoch(self, party: str, row: Mapping[str, Any]) -> None:
        self._tell({"epoch": dict(row), "bytes": self._ledger.bytes})
        phase = str(row["phase"])
        for name, value in row.items():
            if name not in NOT_LOGGED and value is not None and math.isfinite(value):
                self._track(f"{phase}/{name}", float(value), int(row["epoch"]))

    def ended(self) -> None:
        self._ended.set()
        self._tell({"ended": True})

    def _tell(self, told: Mapping[str, Any]) -> None:
        data = Shareable()
        data["told"] = json.dumps(told)
        with self._engine.new_context() as context:
            self._site.fire_fed_event(job.PROGRESS, data, context)

    def _track(self, tag: str, value: float, epoch: int) -> None:
        kind = AnalyticsDataType.SCALAR
        numbers = create_analytic_dxo(tag=tag, value=value, data_type=kind, global_step=epoch)
        with self._engine.new_context() as context:
            send_analytic_dxo(self._site, numbers, context, fire_fed_event=True)


@contextmanager
def _stopped_by(abort_signal: Any) -> Iterator[None]:
    """While it lasts, an aborted job stops the role as SIGTERM does: the state is saved."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            if abort_signal.triggered:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()
