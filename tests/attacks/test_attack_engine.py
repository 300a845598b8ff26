"""Whoever may submit jobs to an engine cannot make a site build a class that is not ours."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from colonnade.config import federation
from colonnade.config.federation import Member
from colonnade.errors import FederationError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("nvflare") is None, reason="needs NVFlare"),
]


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from colonnade.deploy.nvflare import kits

    folder = tmp_path_factory.mktemp("engine")
    members = [Member("bank", "127.0.0.1:7443", "", "ab" * 32), Member("shop", "", "", "cd" * 32)]
    file = federation.write(folder / "federation.toml", "ours", members, {"method": "splitnn"})
    kits.provision(federation.load(file), folder / "kits")
    return folder / "kits"


def built(kit: Path, paths: set[str]) -> set[str]:
    """Which of these classes a job may have built where this kit is installed: the engine's own
    check, with the kit's own files."""
    from nvflare.apis.fl_exception import UnsafeComponentError
    from nvflare.apis.workspace import Workspace
    from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

    guard, place = ComponentPathAuthorizer(), Workspace(str(kit))
    allowed = set()
    for path in paths:
        try:
            guard.authorize_component_config({"path": path}, workspace=place)
            allowed.add(path)
        except UnsafeComponentError:
            continue
    return allowed


@pytest.mark.parametrize("name", ["bank", "shop", "localhost"])
def test_a_job_with_another_class(name: str, provisioned: Path) -> None:
    """Whoever submits names a class of the engine, of Python or of another part of Colonnade in a
    job; each site builds our Site and nothing else, the server our Conductor and the receiver of
    what sites track."""
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    from colonnade.deploy.nvflare import job

    ours = {job.CONDUCTOR, job.TENSORBOARD} if name == "localhost" else {job.SITE}
    others = {
        *DEFAULT_CLASS_ALLOW_LIST,
        job.CONDUCTOR,
        job.SITE,
        job.TENSORBOARD,
        "subprocess.Popen",
        "colonnade.plugin.load",
        "colonnade.deploy.nvflare.site.SiteAndMore",
    }
    assert built(provisioned / name, others) == ours


@pytest.mark.parametrize("change", ["no list", "no file", "no object", "no JSON"])
def test_a_kit_whose_lock_is_not_known_is_not_handed_out(change: str, tmp_path: Path) -> None:
    """Another version of the engine may call the list of classes otherwise, or keep it elsewhere:
    a kit that would allow everything stops the provisioning."""
    from colonnade.deploy.nvflare import kits

    local = tmp_path / "bank" / "local"
    local.mkdir(parents=True)
    file = local / "resources.json.default"
    content = {"no list": "{}", "no object": "[]", "no JSON": "{"}.get(change)
    if content is not None:
        file.write_text(content)
    with pytest.raises(FederationError, match="class_allow_list"):
        kits._allow(tmp_path / "bank", "")
    assert not (local / "resources.json").exists()
    file.write_text(json.dumps({"class_allow_list": ["everything"]}))
    kits._allow(tmp_path / "bank", "")
    assert json.loads((local / "resources.json").read_text())["class_allow_list"] != ["everything"]
