"""From a federation file to NVFlare's project file and startup kits.

    kits/project.yml             who takes part, in NVFlare's words
    kits/authority/              the engine's authority and its key: whoever has it can be anybody
    kits/bank/                   goes to the bank: certificate, address of the server, settings
    kits/flare.example.org/      the server's
    kits/lead@colonnade.internal/   of whoever submits jobs

Run again for more members, it makes the kits that are missing, under the same authority.
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

from colonnade import state
from colonnade.engine import job, sitefile
from colonnade.errors import FederationError, RunError
from colonnade.federation import Federation, split_address

ADMIN = "lead@colonnade.internal"
SERVER = "localhost:8002"
AUTHORITY = "authority"


def provision(
    federation: Federation,
    out: Path,
    server: str = SERVER,
    admin: str = ADMIN,
    state_folder: str = "",
) -> list[Path]:
    """Write the project file and the kits that are not there yet; returns those.

    state_folder  where the server will keep jobs and their results; default: a folder of the
                  federation's name in /var/tmp of its machine
    """
    host, port = _server(federation, server)
    project = project_of(federation, host, port, admin)
    out.mkdir(parents=True, exist_ok=True)
    import yaml

    state.write_text(yaml.safe_dump(project, sort_keys=False), out / "project.yml")
    made = _provisioned(project, out / AUTHORITY)
    fresh: list[Path] = []
    for kit in sorted(made.iterdir()):
        target = out / kit.name
        if not kit.is_dir() or target.exists():
            continue
        shutil.move(kit, target)
        kept = state_folder or f"/var/tmp/nvflare-{federation.name}"
        _allow(target, kept if kit.name == host else "")
        if (party := job.party_of(kit.name)) in federation.names:
            _prepare_site(target, federation, party)
        fresh.append(target)
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
        raise RunError("NVFlare is not installed here: pip install 'colonnade[nvflare]'") from None


# ---- inner workings ------------------------------------------------------------------------------


def _server(federation: Federation, server: str) -> tuple[str, int]:
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
    need_nvflare()
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
    """Let it build our component, and no others than before: no job brings code.

    kept  the folder of the server's state, which would be the same for all servers of a machine;
          empty: this is not the server
    """
    given = kit / "local" / "resources.json.default"
    if not given.exists():
        return
    resources = json.loads(given.read_text(encoding="utf-8"))
    if "class_allow_list" not in resources:
        return
    resources["class_allow_list"] += [job.CONDUCTOR if kept else job.SITE]
    text = json.dumps(resources, indent=1).replace("/tmp/nvflare", kept or "/tmp/nvflare")
    state.write_text(text, kit / "local" / "resources.json")


def _prepare_site(kit: Path, federation: Federation, name: str) -> None:
    folder = kit / "local" / sitefile.FOLDER / federation.name
    folder.mkdir(parents=True)
    shutil.copyfile(federation.path, folder / "federation.toml")
    text = sitefile.TEMPLATE.format(name=name, federation=federation.name)
    state.write_text(text, folder / sitefile.FILE)
