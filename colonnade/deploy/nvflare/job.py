"""A job: which federation, which run, and what all must agree on. Nothing of a site is in it.

    meta.json                            the sites; all of them must be there
    app/config/config_fed_server.json    Conductor, and the engine's writer for TensorBoard
    app/config/config_fed_client.json    Site

The settings do not travel as something to be run: every site trains what its own federation file
says, and a job whose `facts` differ from it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from colonnade.config.federation import Federation
from colonnade.deploy.connect import facts_of

CONDUCTOR, SITE = "colonnade.deploy.nvflare.server.Conductor", "colonnade.deploy.nvflare.site.Site"
TENSORBOARD = "nvflare.app_opt.tracking.tb.tb_receiver.TBAnalyticsReceiver"
CHECK, TAKE_PART = "check", "take_part"  # the two tasks of a site
PROGRESS = "colonnade.progress"  # an event: a site tells the server how far it is
STATS = "colonnade"  # under which a running job shows what it knows
TOLD = "colonnade.json"  # what the sites said, in the server's folder of the job
CALLED = {"server": "party-server"}  # sites that cannot have their party's name: it is the engine's


def site_of(party: str) -> str:
    """What the engine calls a party's site."""
    return CALLED.get(party, party)


def party_of(site: str) -> str:
    return {called: party for party, called in CALLED.items()}.get(site, site)


def write(federation: Federation, run: str, relay: bool, folder: Path) -> Path:
    """The folder of a job; `run` names the folder in which every site keeps it."""
    sites = [site_of(name) for name in federation.names]
    app = folder / "app" / "config"
    app.mkdir(parents=True, exist_ok=True)
    _write(
        folder / "meta.json",
        {
            "name": federation.name,
            "resource_spec": {},
            "min_clients": len(sites),
            "mandatory_clients": sites,
            "deploy_map": {"app": ["server", *sites]},
        },
    )
    conductor = {"parties": list(federation.names), "facts": facts_of(federation)}
    _write(
        app / "config_fed_server.json",
        {
            "format_version": 2,
            "server": {"task_request_interval": 0.2},  # seconds until a site asks for the next task
            "workflows": [{"id": "conductor", "path": CONDUCTOR, "args": conductor}],
            "components": [{"id": "tensorboard", "path": TENSORBOARD, "args": {}}],
        },
    )
    site = {"federation": federation.name, "run": run, "relay": relay}
    _write(
        app / "config_fed_client.json",
        {
            "format_version": 2,
            "executors": [{"tasks": [CHECK, TAKE_PART], "executor": {"path": SITE, "args": site}}],
            "components": [],
        },
    )
    return folder


def differences(job: Mapping[str, str], site: Mapping[str, str], name: str) -> list[str]:
    """The facts in which a site's federation file differs from the job."""
    return [
        f"'{name}': {key} is {site.get(key, 'missing')} there, {job.get(key, 'missing')} in the job"
        for key in sorted({*job, *site})
        if job.get(key) != site.get(key)
    ]


def complaints(
    facts: Mapping[str, str], told: Mapping[str, Mapping[str, Any]], parties: Sequence[str]
) -> list[str]:
    """Why not to begin, from the sites' answers: all differences and problems, one by one."""
    found: list[str] = []
    for name in parties:
        answer = told.get(name, {"problem": "no answer came"})
        if "problem" in answer:
            found.append(f"'{name}': {answer['problem']}")
        found += differences(facts, answer.get("facts", facts), name)
    return found


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
