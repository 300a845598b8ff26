"""Submit a federation as a job, follow it, and put what comes back into one result.

runs/scores/job/           what was submitted
runs/scores/sites/bank/    what the bank's site told: account.json, log.txt
runs/scores/tensorboard/   what the engine's own tracking wrote
runs/scores/result.json    of all; weights as digests: each site keeps its own
"""

from __future__ import annotations

import io
import json
import logging
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.config.federation import Federation
from colonnade.deploy.nvflare import job, kits, told
from colonnade.errors import FederationError, RoleFailed, RunError, foreign, printable
from colonnade.results import folder as folders
from colonnade.results.observer import Observer, Sums
from colonnade.results.result import Result, read_json
from colonnade.results.writer import ResultFile
from colonnade.role.progress import Meter
from colonnade.wire import store

POLL_SECONDS = 1.0
CONNECT_SECONDS = 30.0
ENDED = "FINISHED"  # how the engine's words for jobs that have ended begin


@dataclass(frozen=True)
class Outcome:
    """What a job has left at the server."""

    status: str  # the engine's word
    refused: list[str]
    sites: dict[str, dict[str, Any]]
    ready: float  # seconds until the first role began; 0: none did

    @property
    def why(self) -> str:
        """Of a job that ended before all sites had."""
        return (
            f"the engine ended the job ({self.status}): the process of a site has died, or somebody"
            " has aborted it; the logs are in engine/ of the run's folder"
        )


def submit(
    federation: Federation,
    kit: Path,
    *,
    out: Path | None = None,
    resume: Path | None = None,
    overwrite: bool = False,
    relay: bool | None = None,
    observer: Observer | None = None,
) -> Result:
    """Train a federation on the sites of an engine; returns when the job has ended.

    kit     the startup kit of whoever may submit
    resume  the folder of a job that was aborted: go on from the last common checkpoint
    relay   connections between the sites pass through the engine; a resumed run keeps its own
    """
    began = time.perf_counter()
    observer = observer or Observer()
    with Console(kit) as session, ExitStack() as held:
        session.check(federation)  # before anything is written
        folder, attempt, token, relay = _folder(federation, kit, out, resume, overwrite, relay)
        held.enter_context(folders.alone(folder))
        file = ResultFile.begin(
            folder, federation.run, "nvflare", federation.cast, federation.holder, began
        )
        try:
            outcome = session.run(federation, token, relay, folder, observer)
        except KeyboardInterrupt as stop:
            again = f"go on with: colonnade nvflare submit --resume {folder}"
            folders.tell(stop, folder, again)
            raise
        finally:
            observer.ended()
    if outcome.refused:
        if attempt == 1:
            folders.withdraw(folder)
        raise FederationError(outcome.refused)
    result = _joined(federation, file, outcome)
    if result.content["status"] != "finished":
        error = RoleFailed(result.content["error"])
        folders.tell(error, folder, f"what was reached lies in {folder}")
        error.add_note(f"go on with: colonnade nvflare submit --resume {folder}")
        raise error
    folders.finish(folder)
    return result


class Console:
    """A connection with the engine's server, as the holder of a startup kit."""

    def __init__(self, kit: Path, seconds: float = CONNECT_SECONDS) -> None:
        self._kit, self._seconds = kit, seconds
        self._api: Any = None

    def __enter__(self) -> Console:
        kits.need_nvflare()
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        found = self._kit / "startup" / "fed_admin.json"
        if not found.exists():
            raise RunError(
                f"{self._kit} is not the startup kit of somebody who may submit: give --kit DIR, "
                "as `colonnade nvflare provision` has made it"
            )
        user = read_json(found)["admin"]["username"]
        logging.getLogger("nvflare").addHandler(logging.NullHandler())  # it tells us by errors
        try:
            with redirect_stdout(io.StringIO()):
                self._api = new_secure_session(
                    user, str(self._kit.resolve()), timeout=self._seconds
                )
        except Exception as error:  # noqa: BLE001 - the engine's errors have no common root
            raise RunError(f"the engine's server does not let '{user}' in: {error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._api.close()

    def sites(self) -> set[str]:
        """The parties whose sites are connected with the server."""
        return {job.party_of(client.name) for client in self._api.get_system_info().client_info}

    def check(self, federation: Federation) -> None:
        """Refuse to submit while a site is missing."""
        missing = set(federation.names) - self.sites()
        if missing:
            raise RunError(
                f"not connected with the engine: {', '.join(sorted(missing))}. Start those sites "
                "(startup/start.sh of their kits), then submit again"
            )

    def run(
        self, federation: Federation, token: str, relay: bool, folder: Path, observer: Observer
    ) -> Outcome:
        """Submit, follow until the end, fetch."""
        path = job.write(federation, token, relay, folder / "job")
        number = self._api.submit_job(str(path.resolve()))
        observer.note(f"job {number}")
        try:
            status, ready = self._follow(number, federation, observer)
        except KeyboardInterrupt:
            observer.note("aborting the job: every site saves itself")
            self._api.abort_job(number)
            raise
        return self._fetch(number, status, ready, folder)

    def _follow(self, number: str, federation: Federation, observer: Observer) -> tuple[str, float]:
        began, ready, seen = time.perf_counter(), 0.0, 0
        method, options = federation.run.found.method, federation.run.options
        everyone = method.rows.own_labels or method.rows.everyone_labelled(options)
        meters = {name: Meter(everyone or name == federation.holder) for name in federation.names}
        traffic, ended = Sums(), 0
        while True:
            status = str(self._api.get_job_meta(number).get("status", ""))
            asked = status == "RUNNING" and ended < len(meters)
            shown = self._shown(number) if asked else {"now": {}, "events": []}
            ended = sum("ended" in now for now in shown["now"].values()) or ended
            for site, now in shown["now"].items():
                if not ready:
                    ready = time.perf_counter() - began
                    observer.began(federation.run, meters, traffic)
                if "meter" in now:
                    meter = meters[site]
                    meter.phase, meter.share, meter.epochs = now["meter"]
            for site, event in shown["events"][seen:]:  # several, since the last look
                traffic.set(site, event["bytes"])
                observer.epoch(site, event["epoch"])
            for site, now in shown["now"].items():
                traffic.set(site, now.get("bytes", 0))
            seen = max(seen, len(shown["events"]))
            if status.startswith(ENDED):
                return status, ready
            time.sleep(POLL_SECONDS)

    def _shown(self, number: str) -> dict[str, Any]:
        """What the server's part of a running job tells about it."""
        try:
            stats = self._api.show_stats(number, "server")
            shown: dict[str, Any] = json.loads(stats["server"][job.STATS]["told"])
        except Exception:  # noqa: BLE001 - it is just starting, or just ending
            return {"now": {}, "events": []}
        return shown

    def _fetch(self, number: str, status: str, ready: float, folder: Path) -> Outcome:
        place = folder / "engine"
        shutil.rmtree(place, ignore_errors=True)
        found = Path(self._api.download_job_result(number, str(place)))
        files = list(found.rglob(job.TOLD))
        said = read_json(files[0]) if files else {"refused": [], "sites": {}}
        events = next(iter(found.rglob("tb_events")), None)
        if events is not None:
            shutil.copytree(events, folder / "tensorboard", dirs_exist_ok=True)
        return Outcome(status, said["refused"], said["sites"], ready)


def kit_of(run: Path) -> Path:
    """The startup kit with which a run was submitted."""
    return Path(_manifest(run)["kit"])


# ---- inner workings ------------------------------------------------------------------------------


def _folder(
    federation: Federation,
    kit: Path,
    out: Path | None,
    resume: Path | None,
    overwrite: bool,
    relay: bool | None,
) -> tuple[Path, int, str, bool]:
    """The folder, which attempt this is, the name of the run at the sites, whether to relay."""
    settings = federation.run
    if resume is not None:
        manifest = _manifest(resume)
        if (resume / "result.json").exists() and _finished(resume):
            raise RunError(f"{resume} is finished: there is nothing to resume")
        if manifest.get("config_sha256") != settings.sha256():
            raise RunError(f"{resume} was made by another configuration: submit a new run")
        token, attempt = str(manifest["token"]), int(manifest["attempt"]) + 1
        relay = bool(manifest["relay"]) if relay is None else relay
        folder = resume
    else:
        folder = out if out is not None else folders.free(federation.name, overwrite)
        token, relay = f"{federation.name}-{secrets.token_hex(4)}", bool(relay)
        attempt = folders.create(folder, settings, overwrite, runtime="nvflare")
        (folder / "ledger.jsonl").unlink()  # every site keeps its own
        shutil.copyfile(federation.path, folder / "federation.toml")
    more = {"runtime": "nvflare", "token": token, "relay": relay, "kit": str(kit.resolve())}
    folders.mark(folder, settings, attempt, **more)
    return folder, attempt, token, relay


def _finished(run: Path) -> bool:
    return bool(read_json(run / "result.json").get("status") == "finished")


def _manifest(run: Path) -> dict[str, Any]:
    manifest = folders.check_format(run)
    if manifest.get("runtime") != "nvflare" or "token" not in manifest:
        raise RunError(f"{run} was not made by `colonnade nvflare submit`")
    return manifest


def _joined(federation: Federation, file: ResultFile, outcome: Outcome) -> Result:
    """result.json of all sites that told something."""
    sites = {
        name: told.checked(outcome.sites[name], name, federation)
        for name in federation.names
        if name in outcome.sites
    }
    for name, site in sites.items():
        place = file.folder / "sites" / name
        place.mkdir(parents=True, exist_ok=True)
        store.write_text(printable(site["log"]), place / "log.txt")
        store.write_text(json.dumps(site.get("account")), place / "account.json")
    accounts = {name: site["account"] for name, site in sites.items() if site.get("account")}
    problems = [
        f"'{name}': {foreign(site['problem'])}" for name, site in sites.items() if "problem" in site
    ]
    finished = not problems and accounts.keys() == set(federation.names)
    silent = [f"'{name}'" for name in federation.names if name not in sites]
    why = "; ".join(problems) or outcome.why
    if silent:
        why += f"; nothing came from {', '.join(silent)}"
    return file.write(
        "finished" if finished else "failed",
        "" if finished else why,
        data=sites.get(federation.holder, {}).get("data") or {},
        accounts=accounts,
        setup=outcome.ready,
        wire=merged_wire(sites, federation.hub),
        warnings=sites.get(federation.hub, {}).get("warnings", []),  # it has heard everybody's
        own=[federation.hub],
    )


def merged_wire(sites: Mapping[str, Mapping[str, Any]], hub: str) -> dict[str, Any]:
    """The `wire` of all, from what each site has sent; the rounds as the hub has counted them."""
    total: dict[str, Any] = {"bytes": 0, "messages": 0}
    total["rounds"] = sites.get(hub, {}).get("rounds", 0)
    total |= {"by_kind": {}, "by_party": {}, "by_phase": {}, "flows": []}
    for site in sites.values():
        wire = site.get("wire") or {}
        for key in ("bytes", "messages"):
            total[key] += wire.get(key, 0)
        total["flows"] += wire.get("flows", [])
        for part in ("by_kind", "by_party", "by_phase"):
            for name, numbers in wire.get(part, {}).items():
                here = total[part].setdefault(name, {})
                for key, value in numbers.items():
                    here[key] = here.get(key, 0) + value if isinstance(value, int) else value
    return total
