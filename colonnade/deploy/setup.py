"""Checks what one party brings to a federation before anything is written or any peer is called.

It needs its rows (a server: none), its keys, its policy and the shared federation file, and
nothing of anybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NoReturn

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from colonnade import assembly, models
from colonnade.align import ristretto
from colonnade.assembly import OwnRows, schedule_of
from colonnade.config import Config
from colonnade.config.federation import Federation
from colonnade.data import own
from colonnade.data.own import OwnFile
from colonnade.deploy.forecast import fewest, sends_of
from colonnade.deploy.reuse import Reused
from colonnade.errors import ConfigError, DataError, FederationError, MethodError, RunError
from colonnade.net import certs
from colonnade.net.keys import Keys
from colonnade.partition import View
from colonnade.role.batches import check_spread
from colonnade.role.identity import Identity
from colonnade.role.party import Party
from colonnade.task import Task
from colonnade.wire import Kind
from colonnade.wire.policy import Policy


@dataclass(frozen=True)
class Setup:
    """Everything one party brings to a federation, checked before anything is written."""

    federation: Federation
    name: str
    rows: OwnRows
    keys: Keys
    policy: Policy
    settings: Config
    identity: Callable[[str], Identity]  # for a session
    task: Literal["train", "predict"] = "train"
    runtime: str = "process"  # for result.json
    addresses: Mapping[str, str] = field(default_factory=dict)  # instead of the federation file's
    token: str = ""  # of an engine's job: parties of another one are refused
    reused: Reused | None = None  # common rows that were found before
    simulated: bool = False  # started for a run on this machine: its journal counts for nobody

    @property
    def sends(self) -> tuple[Kind, ...]:
        """What this party may send in its role, with these settings."""
        return sends_of(self.federation, self.name)

    @property
    def cast(self) -> dict[str, str]:
        return self.federation.cast

    @property
    def elastic(self) -> bool:
        """Whether parties may come and go."""
        return self.federation.elastic


def prepare(
    federation: Federation,
    name: str,
    rows: OwnRows,
    keys: Path,
    policy: Policy | None = None,
    device: Literal["cpu", "cuda"] | None = None,
    tls: Keys | None = None,
) -> Setup:
    """Check what one party brings; nothing is written and nobody is called.

    keys  the folder of its signing key, and of its certificate unless `tls` says where that lies
    """
    tls = replace(tls or Keys.of(keys, name), pins=federation.pins)
    key = _signing_key(federation, name, keys, tls)
    method = federation.run.found.method
    policy = policy or federation.policy or _no_policy(federation, name)
    policy.check_kinds(federation.run.kinds)
    settings = federation.run
    if settings.run.record:
        raise ConfigError(["record keeps what parties send, which only a simulation may do"])
    if device is not None:
        settings = replace(settings, run=replace(settings.run, device=device))
    if settings.run.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(['device = "cuda": this machine has no CUDA device; use "cpu"'])
    trusted = {member.name: member.public_key for member in federation.members}
    setup = Setup(
        federation,
        name,
        rows,
        tls,
        policy,
        settings,
        lambda session: Identity(name, session, trusted, key),
    )
    if why := method.simulated(settings.options):
        raise ConfigError([f"{why}: only a simulation may do that"])
    role = federation.role(name)
    if role.features and not rows.width:
        raise MethodError(f"'{name}' brings no features, but its role in {method.name} needs some")
    _check_network(setup)
    if settings.align is not None and role.rows:
        ristretto.library()
    if settings.align is None:  # else once the common rows are known
        least = fewest(federation, name, policy)
        check_spread(name, rows.splits, schedule_of(settings), least)
    return setup


def _signing_key(federation: Federation, name: str, keys: Path, tls: Keys) -> Ed25519PrivateKey:
    """The party's own; it and the certificate must be those that the federation file expects."""
    me = federation.member(name)
    shown = certs.check(tls.certificate, tls.authority, tls.common_name(name))
    if me.tls_keys and shown.tls_key not in me.tls_keys:
        raise FederationError(
            [
                f"{tls.certificate} has the TLS key {shown.tls_key}, which {federation.path} does "
                f"not name in tls_keys of '{name}': all others would refuse it"
            ]
        )
    key = certs.signing_key(keys / f"{name}.sign")
    if key.public_key().public_bytes_raw() != me.public_key:
        raise FederationError(
            [
                f"{keys / name}.sign is not the key that {federation.path} pins for '{name}': "
                f"`colonnade certs show {name}.sign` prints the key that belongs there"
            ]
        )
    return key


def _no_policy(federation: Federation, name: str) -> NoReturn:
    raise ConfigError(
        [
            f"'{name}' has no policy, so nothing may leave it. Give --policy FILE, or [policy] "
            "in the federation file. To begin with, this is what it sends; set the limits:\n\n"
            + Policy.template(
                sends_of(federation, name), next(n for n in federation.names if n != name)
            )
        ]
    )


def party_of(setup: Setup, task: Task, view: View | None) -> Party:
    """The party with its rows, before it has learnt anything."""
    settings = setup.settings
    party = Party(
        setup.name,
        setup.cast[setup.name],
        settings.parties.get(setup.name, settings.recipe),
        schedule_of(settings),
        setup.rows.splits,
        setup.rows.preparation,
        task,
        torch.device(settings.run.device),
        view,
        setup.rows.names if settings.align is not None else (),
    )
    if setup.task == "train":
        party.fewest = fewest(setup.federation, setup.name, setup.policy)
    return party


def read_rows(file: OwnFile | Path | None, shared: Federation, name: str) -> OwnRows:
    """A party's rows, if its role has any."""
    check_data(file, shared, name)
    if file is None:
        return assembly.no_rows(_agreed(shared.run))
    file = own.described(file) if isinstance(file, Path) else file
    path = Path(file.data)
    if path.suffix == ".json":  # handed over by a supervisor of this machine
        return assembly.load_rows(path.with_suffix(""), shared.run)
    if path.suffix not in (".csv", ".tsv", ".txt", ".gz", ".parquet", ".npz"):
        raise DataError(
            f"--data {path}: give a .csv or .parquet file with the columns id and label, images as "
            ".npz, or a .toml file that names them"
        )
    method = shared.run.found.method
    everyone = method.rows.own_labels or method.rows.everyone_labelled(shared.run.options)
    return assembly.from_file(file, name, shared.run, labelled=everyone or name == shared.holder)


def _agreed(run: Config) -> Task | None:
    """The task of a run in which every party brings labels of its own, as the file says it."""
    agreed = run.data.classes or run.data.spread is not None
    return assembly.task_for(run, run.data.classes) if agreed else None


def check_data(file: OwnFile | Path | None, shared: Federation, name: str) -> None:
    """Whether --data is there where it is needed, and only there."""
    needed = shared.role(name).rows
    if needed and file is None:
        raise RunError(f"colonnade party: give --data FILE, the rows of '{name}', .csv or .npz")
    if file is not None and not needed:
        raise RunError(
            f"colonnade party: '{name}' plays '{shared.cast[name]}', which brings no rows: omit "
            "--data"
        )


def _check_network(setup: Setup) -> None:
    """Whether the party's network can take its rows, found without making a single weight."""
    recipe = setup.settings.parties.get(setup.name, setup.settings.recipe)
    if not setup.rows.width:
        return
    shape = tuple(next(iter(setup.rows.splits.values())).x.shape[1:])
    try:
        models.check(recipe.model, shape, **recipe.model_options)
    except ConfigError as error:
        raise ConfigError([f"party '{setup.name}': {p}" for p in error.problems]) from None
