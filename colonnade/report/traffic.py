"""What a run sent, for the page: bars of bytes, a table by party, and who saw what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colonnade.report import plots, units

Result = Mapping[str, Any]  # a parsed result.json

MOST_PARTIES = 16  # beyond: the largest, and the sum of the others
MOST_FLOWS = 40  # beyond: summed by role


def bars(result: Result, key: str) -> dict[str, Any] | None:
    """Bytes sent by party and Kind; the smallest are summed where there are too many."""
    from markupsafe import Markup

    if not result["wire"]["flows"]:
        return None
    kinds, sizes = _sent(result)
    label = "Bytes sent: " + ", ".join(f"{p} {units.size(sum(row))}" for p, row in sizes.items())
    # two drawings, because text must not shrink with the screen; CSS shows one of them
    wide, narrow = (
        plots.stacked_bars(
            list(sizes),
            kinds,
            list(sizes.values()),
            key=f"{key}-bars{width}",
            label=units.plain(label),
            width=width,
        )
        for width in (680, 340)
    )
    legend = [
        {"name": kind, "svg": Markup(plots.fill_swatch(i, key=f"{key}-fill{i}"))}
        for i, kind in enumerate(kinds)
    ]
    return {"wide": Markup(wide), "narrow": Markup(narrow), "legend": legend}


def _sent(result: Result) -> tuple[list[str], dict[str, list[int]]]:
    """(Kinds, bytes of each Kind by party), the largest first."""
    sent: dict[tuple[str, str], int] = {}
    for flow in result["wire"]["flows"]:
        place = (flow["sender"], flow["kind"])
        sent[place] = sent.get(place, 0) + flow["bytes"]
    by_kind = {k: sum(n for (_, kind), n in sent.items() if kind == k) for _, k in sent}
    kinds = sorted(by_kind, key=lambda k: -by_kind[k])
    senders = {sender for sender, _ in sent}
    named = [p for p in result["parties"] if p in senders]
    named = list(dict.fromkeys([*named, *(sender for sender, _ in sent)]))
    sizes = {p: [sent.get((p, k), 0) for k in kinds] for p in named}
    if len(kinds) > plots.MOST:
        kept = plots.MOST - 1
        sizes = {p: [*row[:kept], sum(row[kept:])] for p, row in sizes.items()}
        kinds = [*kinds[:kept], f"{len(kinds) - kept} other Kinds"]
    if len(named) > MOST_PARTIES:
        ranked = sorted(named, key=lambda p: -sum(sizes[p]))
        rest = ranked[MOST_PARTIES - 1 :]
        others = [sum(sizes[p][i] for p in rest) for i in range(len(kinds))]
        sizes = {p: sizes[p] for p in ranked[: MOST_PARTIES - 1]}
        sizes[f"{len(rest)} others"] = others
    return kinds, sizes


def parties(result: Result) -> list[dict[str, Any]]:
    """What every party sent and received."""
    by_party = result["wire"]["by_party"]
    rows = [
        {"name": party, "role": result["roles"].get(party, ""), **by_party[party]}
        for party in result["parties"]
        if party in by_party
    ]
    if len(rows) <= MOST_PARTIES:
        return rows
    rows.sort(key=lambda row: -(row["sent_bytes"] + row["received_bytes"]))
    kept, rest = rows[: MOST_PARTIES - 1], rows[MOST_PARTIES - 1 :]
    numbers = ("sent_bytes", "sent_messages", "received_bytes", "received_messages")
    others = {key: sum(row[key] for row in rest) for key in numbers}
    return [*kept, {"name": f"{len(rest)} others", "role": "", **others}]


def phases(wire: Mapping[str, Any]) -> str:
    """`12 kB in setup, 240 MB in training and 4 MB in evaluation`."""
    words = {"setup": "setup", "train": "training", "eval": "evaluation"}
    found = [
        f"{units.size(wire['by_phase'][phase]['bytes'])} in {word}"
        for phase, word in words.items()
        if wire["by_phase"].get(phase, {}).get("messages")
    ]
    return units.names(found)


def flows(result: Result) -> dict[str, Any]:
    """Who saw what, Kind by Kind; summed by role where there are too many pairs."""
    flows, roles = result["wire"]["flows"], result["roles"]
    summed = len(flows) > MOST_FLOWS
    kinds: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for flow in flows:
        pair = (flow["sender"], flow["receiver"])
        place = (roles.get(pair[0], ""), roles.get(pair[1], "")) if summed else pair
        row = kinds.setdefault(flow["kind"], {}).setdefault(
            place, {"senders": set(), "receivers": set(), "messages": 0, "bytes": 0}
        )
        row["senders"].add(pair[0])
        row["receivers"].add(pair[1])
        row["messages"] += flow["messages"]
        row["bytes"] += flow["bytes"]
    view = []
    for kind, rows in kinds.items():
        lines = [
            {
                "sender": _who(row["senders"], place[0], summed),
                "receiver": _who(row["receivers"], place[1], summed),
                "messages": row["messages"],
                "bytes": row["bytes"],
            }
            for place, row in rows.items()
        ]
        declared = result["wire"]["by_kind"].get(kind, {})
        view.append({"kind": kind, "declared": declared, "rows": lines})
    return {"kinds": view, "summed": summed}


def _who(members: set[str], role: str, summed: bool) -> str:
    if len(members) == 1 or not summed:
        return next(iter(members))
    return f"{units.count(len(members))} × {role or 'party'}"
