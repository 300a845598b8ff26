"""The doctor on a site.toml: what a party brings, with the certificate of its startup kit."""

from __future__ import annotations

from pathlib import Path

from colonnade.assembly import OwnRows
from colonnade.config.federation import Federation
from colonnade.deploy.doctor.check import Check, Mine, problems
from colonnade.deploy.doctor.federation import examine
from colonnade.deploy.doctor.machine import software
from colonnade.deploy.nvflare import job, sitefile
from colonnade.deploy.setup import read_rows
from colonnade.errors import ColonnadeError
from colonnade.net import certs
from colonnade.results.result import read_json


def is_site(path: Path) -> bool:
    """Whether it says what a site brings to a federation of NVFlare."""
    return path.name == "site.toml"


def examine_site(path: Path) -> list[Check]:
    """All checks of what one site brings: its site.toml lies in its startup kit."""
    folder = path.absolute().parent
    kit = folder.parent.parent.parent
    place = sitefile.Workplace(kit / "local", kit / "startup", kit / "runs")
    try:
        file, _, shared = sitefile.federation_of(place, folder.name)
        name = job.party_of(certs.facts(place.keys.certificate).party)
        server = read_json(kit / "startup" / "fed_client.json")["servers"][0]["service"]["target"]
    except ColonnadeError as error:
        move = f"it belongs into local/{sitefile.FOLDER}/<federation>/ of a startup kit, complete"
        return [*(Check("file", "problem", said, move) for said in problems(error)), software()]

    def rows(federation: Federation) -> OwnRows:
        return read_rows(folder / file.data, federation, name)

    mine = Mine(
        name,
        folder / file.keys,
        rows if file.data else None,
        folder / file.policy if file.policy else None,
        sitefile.run_folder(place, file, folder, "any").parent,
        place.keys,
        server,
    )
    return [_may_build(kit, job.SITE), *examine(shared.path, mine)]


def _may_build(kit: Path, component: str) -> Check:
    """Whether the engine's site lets a job name our component, and no other."""
    file = kit / "local" / "resources.json"
    allowed = read_json(file).get("class_allow_list", ()) if file.exists() else ()
    others = sum(name != component for name in allowed)
    if component not in allowed:
        move = f'set class_allow_list there to ["{component}"]'
        return Check("components", "problem", f"{file} does not let jobs name {component}", move)
    if others:
        said = f"{file} lets jobs name {component}, and {others} other classes"
        move = "remove what no job of yours needs: whoever may submit can have it built here"
        return Check("components", "warning", said, move)
    return Check("components", "ok", f"{file} lets jobs name {component}")
