"""Options of FedEmb that do not go together, and what it says about those that do."""

from __future__ import annotations

from typing import Any


def contradictions(options: Any) -> list[str]:
    """What is wrong with them, all at once."""
    wrong = []
    if options.epsilon and options.noise:
        wrong.append("epsilon sets the noise by itself: omit noise")
    if options.epsilon and options.targets == "proportions":
        wrong.append("targets = 'proportions' tells labels, which epsilon does not cover")
    if options.setting == "vertical" and (options.combinations > 1 or options.match == "class"):
        wrong.append("combinations and match are for setting = 'hybrid'")
    if (options.public == "random") != (options.targets == "class"):
        wrong.append("public = 'random' and targets = 'class' need each other")
    if options.public == "random":
        wrong += _random(options)
    elif options.private == "random":
        wrong.append(
            "private = 'random' needs public = 'random': else a network that leaves learns"
        )
    joined_alike = options.setting == "vertical" or options.match == "class"
    alike = options.grouping == "class" and joined_alike
    known = options.targets in ("hard", "proportions")
    if options.widen and options.public == "trained" and not (alike and known):
        wrong.append(
            "widen needs means of one class each, and their class: grouping = 'class', "
            "targets = 'hard' or 'proportions' and, if hybrid, match = 'class', or else "
            "public = 'random'"
        )
    return wrong


def _random(options: Any) -> list[str]:
    wrong = []
    if options.grouping != "class" or not options.groups:
        wrong.append("public = 'random' needs grouping = 'class', and groups")
    if options.noise or options.generalise:
        wrong.append(
            "public = 'random' takes neither noise nor generalise: epsilon guarantees more"
        )
    if options.combinations > 1 or options.match == "class":
        wrong.append("public = 'random' joins groups by their class: omit combinations and match")
    if options.private == "random" and options.rounds > 1:
        wrong.append("private = 'random' has nothing to learn in a second round: omit rounds")
    return wrong


VECTORS = (
    "what one client releases of each row's vector and label (for M clients that hold the same "
    "person, M times that at worst), and no weights leave; not what other rows' vectors say of a "
    "row that the private part has learnt from, not losses and accuracies, not rows that are "
    "evaluated"
)
RECORDS = (
    "everything that one client tells of a row that is trained on, features and label (for M "
    "clients that hold the same person, M times that at worst); not how many rows and which "
    "classes there are, not rows that are evaluated"
)


def claim(options: Any) -> str:
    """What epsilon covers, where no weights leave; empty: they do."""
    if options.public == "trained":
        return ""
    return RECORDS if options.private == "random" else VECTORS


def labels_told(options: Any) -> str:
    """Labels that leave the clients beside the rows; empty: none."""
    of = "groups" if options.groups else "every row"
    said = f"labels leave the clients: targets = 'proportions' tells the server those of {of}"
    return said if options.targets == "proportions" else ""


def caveats(options: Any) -> list[str]:
    """What reports say of the protection."""
    said: list[str] = options.release.caveats("fedemb", labels_told(options), claim(options))
    return said


def unprotected(options: Any) -> str:
    """Why labels cannot be protected by answers of their own; empty: they can."""
    if options.setting == "vertical" and options.grouping == "class":
        return (
            "with grouping = 'class' needs the same labels at all clients, and each draws answers "
            "of its own; take grouping = 'random'"
        )
    return ""
