"""What a method file declares: its roles, its messages, its options, and who plays what."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from colonnade.errors import MethodError, unknown
from colonnade.role.party import Party
from colonnade.role.stopping import VERDICT
from colonnade.task.task import Kind as TaskKind
from colonnade.wire import Kind, Peer, Wire

LABELS: Mapping[TaskKind, str] = {
    "binary": "two classes",
    "multiclass": "many classes",
    "regression": "numbers",
}
RoleProgram = Callable[..., Coroutine[Any, Any, Any]]
Cast = Callable[[Sequence[str], str, Any], dict[str, str]]


@dataclass(frozen=True)
class Role:
    """The programs of one kind of party.

    train    async def passive(me, active, cfg)
    predict  async def passive_predict(me, active, cfg, split); a party that predicts returns logits
    """

    train: RoleProgram
    predict: RoleProgram
    features: bool = True  # False: a party that brings labels only may play it
    rows: bool = True  # False: a helper of the protocol, such as a server, which brings none
    # (options, number of passive parties): the Kinds it may send; None: all of the method's Kinds
    sends: Callable[[Any, int], Sequence[Kind]] | None = None
    # Each of its Kinds about a batch leaves once per batch of every epoch, to each passive party or
    # to the active one: so a policy's `releases` can be compared with the epochs before a run
    every_epoch: bool = False
    # (options, epochs of the run): the optimisers that train what its party tells others, by name,
    # and for how many epochs each; a MethodError where something else would tell of its rows. None:
    # it does not say, and nobody can be promised how much such a model tells of a record
    trains: Callable[[Any, int], Mapping[str, int]] | None = None


def active_and_passives(parties: Sequence[str], holder: str, options: Any) -> dict[str, str]:
    """The usual cast: the label holder is active, all others are passive, and there is one."""
    if len(parties) < 2:
        raise MethodError(
            f"'{holder}' is the only party: a vertical method needs at least one passive party. "
            'Name more parties, or use method = "local"'
        )
    return {name: "active" if name == holder else "passive" for name in parties}


@dataclass(frozen=True)
class Prologue:
    """A phase that ends before the first message: runs that agree so far may share it."""

    phase: str
    options: tuple[str, ...]  # the names of all options that it depends on


@dataclass(frozen=True)
class RowRules:
    """Which rows and labels the parties of a method hold, and which of them must be the same."""

    # Whether all parties that bring rows must hold the same ones in the same order
    aligned: Callable[[Any], bool] = lambda options: True
    # Whether evaluated rows must be the same at all parties even where training rows are not
    tested_together: Callable[[Any], bool] = lambda options: False
    own_labels: bool = False  # every party brings the labels of its own rows
    # Whether the label holder's labels are lent to all parties
    everyone_labelled: Callable[[Any], bool] = lambda options: False
    ids_only: bool = False  # it needs the ids of the rows, and neither features nor labels
    # With own files every party keeps all its rows, and me.common names those that all parties
    # have; a party predicts without the others
    all_rows: bool = False
    # Whether it runs on the data before the split, at one imagined party
    pooled: Callable[[Any], bool] = lambda options: False


@dataclass(frozen=True)
class Network:
    """What a method requires of its networks and their input."""

    model: str = ""  # the one network it works with; empty: any
    images: bool = False  # every party's rows are parts of images, at known places
    # Whether images are moved as a whole before they are cut: pixels then cross between parties
    moved_whole: Callable[[Any], bool] = lambda options: False


@dataclass(frozen=True)
class Learning:
    """What a method can learn."""

    tasks: Sequence[TaskKind] = ("binary", "multiclass")
    # How a training ends by itself, see role/stopping.py: "together" by the label holder's verdict,
    # "alone" each party by its own validation rows; empty: it cannot
    stops: Literal["", "together", "alone"] = ""
    # Why [protect] label_epsilon cannot protect the labels with these options; empty: it can, since
    # roles use labels through me.task.loss and me.score alone, and whatever they make of them
    unprotected: Callable[[Any], str] = lambda options: (
        "does not say that its roles use labels through me.task.loss and me.score alone; if they "
        'do, declare it with Learning(unprotected=lambda options: "")'
    )
    # Names of Kinds that leave within a budget of the method's own, counted in the party's journal
    counted: Callable[[Any], frozenset[str]] = lambda options: frozenset()


@dataclass(frozen=True)
class Membership:
    """Who talks with whom, and who may be missing."""

    hub: str = ""  # the role of the hub; empty: the label holder
    elastic: bool = False  # parties may go, continue alone and come back while the others go on
    absent: bool = False  # it may train and predict without some of its passive parties
    # Whether others learn a sum over all who take part, and no single term: then the same rows must
    # not be evaluated by two sets of members
    sums: Callable[[Any], bool] = lambda options: False
    signs: Callable[[Any], bool] = lambda options: False  # every party needs me.identity


@dataclass(frozen=True)
class About:
    """What reports say about a method and a run of it, so that they need not know its name."""

    title: str = ""  # as its authors write it; empty: the method's name
    trained: str = ""  # completes "the parties trained …"; empty: "trained with" the title
    reference: str = ""  # the paper
    # Scores of a party that are fractions, by their name in metrics: what each one means
    measures: Mapping[str, str] = field(default_factory=dict)
    # Other numbers that parties log in phases, by name: what each one means
    numbers: Mapping[str, str] = field(default_factory=dict)
    # The caveats of a run with these options, for its log, config.toml and report
    caveats: Callable[[Any], Sequence[str]] = lambda options: ()
    # Whether a second run with the same seed ends with the same weights
    repeats: Callable[[Any], bool] = lambda options: True


@dataclass(frozen=True)
class Circumstances:
    """What is known of a run when its method is asked whether it can run; None: not yet known."""

    options: Any
    validation: float | None = None  # the share of rows held out for decisions
    widths: Sequence[int] | None = None  # numbers per row of the parties with features
    task: TaskKind | None = None  # what the labels are
    passives: Sequence[str] | None = None  # the passive parties that are present
    on_lost: str = ""  # what a federation of strangers does when a party goes; empty: a simulation


@dataclass(frozen=True)
class Method:
    """One method: everything that a runtime, the config and the report need to know about it.

    The first five fields are enough for most methods.
    """

    name: str
    summary: str  # one line for `colonnade methods`
    options: type  # a frozen dataclass, read from the config table of the method's name
    roles: Mapping[str, Role]
    kinds: tuple[Kind, ...] = ()
    cast: Cast = active_and_passives  # (names, label holder, options) -> {party: role}
    rows: RowRules = RowRules()
    network: Network = Network()
    membership: Membership = Membership()
    learning: Learning = Learning()
    # Why these options need all parties in one process; empty: they do not
    simulated: Callable[[Any], str] = lambda options: ""
    # Raises a MethodError or ConfigError if it cannot run; called whenever more is known
    check: Callable[[Circumstances], None] = lambda known: None
    start: Prologue | None = None  # a long phase that parties finish before the first message
    about: About = About()

    def __post_init__(self) -> None:
        names = [kind.name for kind in self.kinds]
        if len(set(names)) < len(names):
            raise MethodError(f"method '{self.name}' declares two Kinds of one name: {names}")
        if self.learning.stops == "together" and VERDICT.name in names:
            raise MethodError(
                f"method '{self.name}' declares a Kind '{VERDICT.name}', which is the label "
                'holder\'s where learning says stops = "together": rename it'
            )

    @property
    def predicts_alone(self) -> bool:
        """Whether a party predicts its own rows without any other."""
        return self.membership.elastic or self.rows.all_rows

    @property
    def title(self) -> str:
        """The method as its authors write it."""
        return self.about.title or self.name

    def told(self, options: object, cast: Mapping[str, str], holder: str) -> dict[str, Any]:
        """What a result states about the method, so that a report need not know the method.

        holder  of the labels, where not every party brings its own
        """
        about, own = self.about, self.rows.own_labels
        helpers = {name: role for name, role in cast.items() if not self.roles[role].rows}
        return {
            "title": self.title,
            "trained": about.trained,
            "repeats": about.repeats(options),
            "helpers": {name: f"a {role.replace('_', ' ')}" for name, role in helpers.items()},
            "own_labels": own,
            "labels": [name for name in cast if name not in helpers and (own or name == holder)],
            "alone": self.start.phase if self.start else "",
            "measures": dict(about.measures),
            "numbers": dict(about.numbers),
        }

    def sent_by(self, role: str, options: object, passives: int) -> tuple[Kind, ...]:
        """The Kinds that a party in this role may send, and its policy must allow."""
        sends = self.roles[role].sends
        return self.kinds if sends is None else tuple(sends(options, passives))

    def trained_by(self, role: str, options: object, epochs: int) -> Mapping[str, int]:
        """The optimisers that train what a party in this role tells others, by name, and for how
        many epochs of a run; none that is known of."""
        trains = self.roles[role].trains
        return {} if trains is None else trains(options, epochs)

    def check_task(self, kind: TaskKind) -> None:
        """Refuse what this method cannot learn, before anything is trained."""
        if kind in self.learning.tasks:
            return
        able = " and ".join(LABELS[task] for task in self.learning.tasks)
        if kind == "regression":
            move = (
                "Choose a method that learns numbers, such as splitnn, or group the labels into "
                "classes"
            )
        else:
            move = 'Choose a method that learns classes, such as splitnn, or set task = "auto"'
        raise MethodError(
            f"method '{self.name}' learns from {able}, and these labels are {LABELS[kind]}. {move}"
        )

    def check_absent(
        self, absent: Collection[str], cast: Mapping[str, str], options: object
    ) -> None:
        """Refuse the absence of a party that this method needs."""
        if not absent:
            return
        if self.membership.elastic:  # every party predicts alone
            if strangers := sorted(name for name in absent if name not in cast):
                raise MethodError(unknown(strangers[0], cast, "as absent", "party"))
            return
        if not self.membership.absent:
            who = ", ".join(f"'{name}'" for name in sorted(absent))
            raise MethodError(
                f"{who} cannot be absent: method '{self.name}' needs all its parties. Wait for "
                "them, or train with a method that can do without some, such as splitnn"
            )
        for name in sorted(absent):
            if name not in cast:
                raise MethodError(unknown(name, cast, "as absent", "party"))
            if cast[name] != "passive":
                raise MethodError(
                    f"'{name}' cannot be absent: it is the {cast[name]} party, and method "
                    f"'{self.name}' can only do without passive ones"
                )
        passives = [name for name, role in cast.items() if role == "passive" and name not in absent]
        self.check(Circumstances(options, passives=passives))


def bind(
    program: RoleProgram,
    me: Party,
    cast: Mapping[str, str],
    wire: Wire,
    options: object,
    absent: Collection[str] = frozenset(),
    **more: object,
) -> Coroutine[Any, Any, Any]:
    """Start a role's program with the peers that its parameters name.

    A parameter named like a role ("active") is the one party that plays it; with an "s"
    ("passives") it is the list of all others that play it, in the order of the parties. `absent`
    parties keep their place in it, as peers that are not present; `Method.check_absent` checks
    whether the method can do without them.
    """
    if me.name in absent:
        raise MethodError(f"'{me.name}' is absent: its role must not be started")
    arguments: list[object] = [me]
    parameters = list(inspect.signature(program).parameters)[1:]
    for parameter in parameters:
        if parameter == "cfg":
            arguments.append(options)
        elif parameter in more:
            arguments.append(more[parameter])
        else:
            arguments.append(_peers(parameter, program.__name__, me.name, cast, wire, absent))
    if me.protection is not None:
        me.protection.begin(me)
    me.stopping.begin(absent)
    dim = getattr(options, "dim", None)
    me.checks.know({"dim": dim} if isinstance(dim, int) else {})
    me.checks.know({"classes": me.task.outputs} if me.task.outputs else {})
    role = program(*arguments)
    me.source = role.cr_code.co_filename  # type: ignore[attr-defined]
    return role


def _peers(
    parameter: str,
    program: str,
    me: str,
    cast: Mapping[str, str],
    wire: Wire,
    absent: Collection[str],
) -> Peer | list[Peer]:
    roles = set(cast.values())
    if parameter in roles:
        found = [name for name, role in cast.items() if role == parameter]
        if len(found) != 1:
            raise MethodError(
                f"'{program}' asks for one '{parameter}', but {found} play that role: "
                f"name the parameter '{parameter}s' to get them all"
            )
        return Peer(found[0], wire, found[0] not in absent)
    if parameter.endswith("s"):
        # A role that nobody else plays gives an empty list.
        return [
            Peer(name, wire, name not in absent)
            for name, role in cast.items()
            if role == parameter[:-1] and name != me
        ]
    raise MethodError(
        f"'{program}' has a parameter '{parameter}'; it may have 'me', 'cfg', a role "
        f"({', '.join(sorted(roles))}) or a role with an 's'"
    )
