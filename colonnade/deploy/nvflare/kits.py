"""From a federation file to NVFlare's project file and startup kits.

    kits/project.yml             who takes part, in NVFlare's words
    kits/authority/              the engine's authority and its key: whoever has it can be anybody
    kits/bank/                   goes to the bank: certificate, address of the server, settings
    kits/flare.example.org/      the server's
    kits/lead@colonnade.internal/   of whoever submits jobs

Run again for more members, or for another federation, it makes what is missing: there is one
authority per folder, and one server. `authorization.json` of every kit says what whoever submits
may do there: submit, follow, stop and fetch jobs; no code of his own, no look at a site's files.
`resources.json` says which classes a job may have built: our own, and at the server the engine's
receiver of what sites track.
Certificates are the engine's. Signing keys are not: each site has made its own, and the federation
file pins them, so that whoever makes the kits cannot put himself between two parties that mask
what they send.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from colonnade.config.federation import Federation, split_address
from colonnade.deploy.nvflare import job, sitefile
from colonnade.deploy.nvflare.defaults import ADMIN, SERVER
from colonnade.errors import FederationError, RunError
from colonnade.version import installing
from colonnade.wire import store

AUTHORITY = "authority"

VIEW = {
    "submit_job": "none",
    "clone_job": "none",
    "manage_job": "none",
    "download_job": "none",
    "view": "any",
    "operate": "none",
    "shell_commands": "none",
    "byoc": "none",
    "server-predeployed-flwr": "none",
}
SUBMIT = VIEW | {"submit_job": "any", "manage_job": "n:submitter", "download_job": "n:submitter"}
RIGHTS = {"project_admin": SUBMIT, "lead": SUBMIT, "org_admin": VIEW, "member": VIEW}  # by role


def provision(
    federation: Federation,
    out: Path,
    server: str = "",
    admin: str = ADMIN,
    state_folder: str = "",
) -> list[Path]:
    """Write the project file, and what is not there yet: kits, and in kits that are there the
    folders of this federation; returns those.

    server        HOST:PORT; empty: that of the kits which are there, or else localhost:8002
    state_folder  where the server will keep jobs and their results; default: a folder of the
                  federation's name in /var/tmp of its machine
    """
    need_nvflare()
    import yaml

    file = out / "project.yml"
    before = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}
    there = _address(before)
    host, port = _server(federation, server or there or SERVER, there)
    project = _merged(before, project_of(federation, host, port, admin))
    out.mkdir(parents=True, exist_ok=True)
    store.write_text(yaml.safe_dump(project, sort_keys=False), file)
    made = _provisioned(project, out / AUTHORITY)
    fresh: list[Path] = []
    ours = {host, admin, *map(job.site_of, federation.names)}
    for kit in sorted(path for path in made.iterdir() if path.name in ours):
        target = out / kit.name
        party = job.party_of(kit.name)
        place = target / "local" / sitefile.FOLDER / federation.name
        is_new = not target.exists()
        if is_new:
            kept = state_folder or f"/var/tmp/nvflare-{project['name']}"
            if kit.name != admin:  # who submits builds nothing
                _allow(kit, kept if kit.name == host else "")
            shutil.move(kit, target)
            fresh.append(target)
        if party in federation.names and not place.exists():
            _prepare_site(place, federation, party)
            fresh += [] if is_new else [place]
    shutil.rmtree(made)
    return fresh


def project_of(federation: Federation, host: str, port: int, admin: str) -> dict[str, Any]:
    """project.yml: one client per member, one server, one who submits."""
    impl = "nvflare.lighter.impl"
    ours = {"org": "colonnade"}
    sites = [
        {"name": job.site_of(name), "type": "client", "org": name.replace("-", "_")}
        for name in federation.names
    ]
    builders: Sequence[tuple[str, Mapping[str, Any]]] = (
        ("workspace.WorkspaceBuilder", {"template_file": ["master_template.yml"]}),
        ("static_file.StaticFileBuilder", {"config_folder": "config", "scheme": "grpc"}),
        ("cert.CertBuilder", {}),
        ("signature.SignatureBuilder", {}),
    )
    return {
        "api_version": 3,
        "name": federation.name,
        "description": f"the federation '{federation.name}' of Colonnade",
        "participants": [
            {"name": host, "type": "server", "fed_learn_port": port, **ours},
            *sites,
            {"name": admin, "type": "admin", "role": "project_admin", **ours},
        ],
        "builders": [{"path": f"{impl}.{path}", "args": dict(a)} for path, a in builders],
    }


def need_nvflare() -> None:
    """An error that says what to install, where NVFlare is not there."""
    try:
        import nvflare  # noqa: F401
    except ImportError:
        raise RunError(f"NVFlare is not installed here: {installing('nvflare')}") from None


# ---- inner workings ------------------------------------------------------------------------------


def _address(project: Mapping[str, Any]) -> str:
    """Of the server of a project file."""
    for one in project.get("participants", ()):
        if one["type"] == "server":
            return f"{one['name']}:{one['fed_learn_port']}"
    return ""


def _merged(before: Mapping[str, Any], project: dict[str, Any]) -> dict[str, Any]:
    """One project per folder, and so one authority: it keeps its name and gains participants."""
    if not before:
        return project
    known = {one["name"] for one in before["participants"]}
    more = [one for one in project["participants"] if one["name"] not in known]
    return {**before, "participants": [*before["participants"], *more]}


def _server(federation: Federation, server: str, there: str) -> tuple[str, int]:
    if there and server != there:
        raise FederationError(
            [
                f"--server {server}: the kits that are there know the server {there}. Omit "
                "--server to add to them, or give another --out"
            ]
        )
    try:
        host, port = split_address(server)
    except ValueError as error:
        raise FederationError([f"--server {server}: {error}"]) from None
    taken = [name for name in federation.names if name in (*job.CALLED.values(), host, AUTHORITY)]
    if taken:
        raise FederationError(
            [f"'{name}' is the engine's own word: call that member otherwise" for name in taken]
        )
    return host, port


class _Silent:
    """What the engine says while it writes is kept, and shown if it fails."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def error(self, text: str) -> None:
        self.lines.append(text)

    debug = info = warning = error


def _provisioned(project: dict[str, Any], authority: Path) -> Path:
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    said = _Silent()
    try:
        builders = prepare_builders(project)
        maker = Provisioner(str(authority), builders)
        context = maker.provision(prepare_project(project), logger=said)
    except (ValueError, RuntimeError) as error:
        raise FederationError([f"NVFlare cannot provision this: {error}"]) from None
    if context.get(CtxKey.BUILD_ERROR):
        raise FederationError([f"NVFlare cannot provision this: {' '.join(said.lines[-3:])}"])
    authority.chmod(0o700)
    return Path(context.get_result_location())


def _allow(kit: Path, kept: str) -> None:
    """Let it build our classes, and none of the engine's own that no job of ours names; let nobody
    bring code, look at its files, or read its log from elsewhere.

    kept  the folder of the server's state, which would be the same for all servers of a machine;
          empty: this is not the server
    """
    given = kit / "local" / "resources.json.default"
    try:
        resources = json.loads(given.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        resources = None
    if not isinstance(resources, dict) or "class_allow_list" not in resources:
        raise FederationError(
            [
                f"{given} of the engine has no class_allow_list: its kit would let a job build any "
                "class, so it is not made. Is this another version of NVFlare than the tested one?"
            ]
        )
    resources["class_allow_list"] = [job.CONDUCTOR, job.TENSORBOARD] if kept else [job.SITE]
    if "allow_log_streaming" in resources:
        resources["allow_log_streaming"] = False
    text = json.dumps(resources, indent=1).replace("/tmp/nvflare", kept or "/tmp/nvflare")
    store.write_text(text, kit / "local" / "resources.json")
    rights = {"format_version": "1.0", "permissions": RIGHTS}
    store.write_text(json.dumps(rights, indent=1), kit / "local" / "authorization.json")


def _prepare_site(folder: Path, federation: Federation, name: str) -> None:
    folder.mkdir(parents=True)
    shutil.copyfile(federation.path, folder / "federation.toml")
    text = sitefile.TEMPLATE.format(name=name, federation=federation.name)
    store.write_text(text, folder / sitefile.FILE)
