"""The file in which a site describes what it brings to a federation; it never leaves the site.

    local/colonnade/scores/site.toml          in the site's workspace; 'scores' is the federation
    local/colonnade/scores/federation.toml    the file that all members share

Paths are relative to the folder of the file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from colonnade import toml
from colonnade.config import code
from colonnade.config import federation as federations
from colonnade.config.federation import Federation
from colonnade.deploy.nvflare import job
from colonnade.deploy.setup import Setup, prepare, read_rows
from colonnade.errors import ConfigError, RunError
from colonnade.net.keys import Keys
from colonnade.wire.policy import Policy

FOLDER, FILE = "colonnade", "site.toml"
TEMPLATE = """\
# What '{name}' brings to the federation '{federation}'. This file stays here, and no job can read
# or change it. Paths are relative to this folder.
federation = "federation.toml"   # what all members agreed on; a job with other settings is refused
data = ""                        # the rows of '{name}': .csv, .parquet or .npz; a server has none
keys = "keys"                    # {name}.sign, whose public half the federation file pins
policy = ""                      # what may leave; empty: [policy] of the federation file
"""


@dataclass(frozen=True)
class SiteFile:
    """site.toml"""

    federation: str = "federation.toml"
    data: str = ""
    keys: str = "keys"
    policy: str = ""
    out: str = ""  # the folder of its runs; empty: runs/ in the site's workspace
    run: str = ""  # the folder in it, of a site that is there for one run; empty: as the job says
    device: Literal["", "cpu", "cuda"] = ""


@dataclass(frozen=True)
class Workplace:
    """A site's own folders: its configuration, its startup kit, and where its runs are kept."""

    local: Path
    startup: Path
    runs: Path

    @property
    def keys(self) -> Keys:
        """The startup kit's certificate. It is valid for the site's name alone, which is also its
        common name."""
        kit = self.startup
        files = kit / "rootCA.pem", kit / "client.crt", kit / "client.key"
        return Keys(*files, domain="", called=job.CALLED)


def federation_of(place: Workplace, name: str) -> tuple[SiteFile, Path, Federation]:
    """A site's file for a federation, the folder it lies in, and the federation it names."""
    folder = place.local / FOLDER / name
    path = folder / FILE
    if not path.exists():
        known = sorted(found.parent.name for found in (place.local / FOLDER).glob(f"*/{FILE}"))
        there = f"it has them for {', '.join(known)}" if known else "it has none at all"
        raise RunError(
            f"this site has no local/{FOLDER}/{name}/{FILE}, which says what it brings: {there}"
        )
    file = _read(path)
    trusted = code.trusted_by(folder / file.policy if file.policy else None)
    return file, folder, federations.load(folder / file.federation, trusted)


def setup_of(
    place: Workplace, party: str, file: SiteFile, folder: Path, shared: Federation
) -> Setup:
    """Everything the site brings, checked; nothing is written."""
    if shared.role(party).rows and not file.data:
        raise RunError(f"'{party}' names no data: write in its {FILE} where its rows lie")
    rows = read_rows(folder / file.data if file.data else None, shared, party)
    policy = Policy.load(folder / file.policy) if file.policy else shared.policy
    if policy is not None:  # what it denies is told, and paths are not
        policy = replace(policy, source=Path(policy.source).name)
    return prepare(shared, party, rows, folder / file.keys, policy, file.device or None, place.keys)


def run_folder(place: Workplace, file: SiteFile, folder: Path, run: str) -> Path:
    """Where a site keeps a run: the same folder when it is submitted again."""
    return (folder / file.out if file.out else place.runs) / (file.run or run)


def _read(path: Path) -> SiteFile:
    problems: list[str] = []
    file: SiteFile = toml.read(SiteFile, toml.load(path, called=path.name), "", problems)
    if problems:
        raise ConfigError([f"{path.name}: {problem}" for problem in problems])
    return file
