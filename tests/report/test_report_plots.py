"""Figures: the same bytes each time, themed, unique ids, any name."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import matplotlib
import pytest
from report_examples import confusion

from colonnade.report import plots
from colonnade.report.plots import Series

HOSTILE = ["<script>", 'id="x" #fe0001', "$\\frac{1}{2}$", "株式会社", "_hidden", "a\x00b\n"]


def lines(number: int) -> list[Series]:
    return [Series(f"run{i}", [1, 2, 3], [0.5, 0.6, 0.7 + i / 100]) for i in range(number)]


def draw(what: str, key: str = "key") -> str:
    if what == "curves":
        return plots.curves(lines(3), key=key, label="accuracy", percent=True)
    if what == "crowd":
        return plots.curves(lines(20), key=key, label="loss")
    if what == "bars":
        return plots.stacked_bars(["a", "b"], ["k", "l"], [[1, 2], [3, 0]], key=key, label="bytes")
    if what == "line":
        return plots.line_swatch(1, key=key)
    if what == "fill":
        return plots.fill_swatch(1, key=key)
    if what == "names":
        return plots.by_name(["a", "b"], [[1.0, 2.0], [None, 3.0]], key=key, label="rows")
    names = [str(i) for i in range(30)]
    return plots.heat_map(confusion(30, 0.9), names, key=key, label="confusion")


KINDS = ["curves", "crowd", "names", "bars", "line", "fill", "heat"]


@pytest.mark.parametrize("what", KINDS)
def test_deterministic(what: str) -> None:
    assert draw(what) == draw(what)


@pytest.mark.parametrize("what", KINDS)
def test_lives_inside_a_page(what: str) -> None:
    svg = draw(what)
    root = ElementTree.fromstring(svg)
    assert root.tag == "svg"
    assert "viewBox" in root.attrib
    assert not {"width", "height"} & set(root.attrib)
    assert (root.get("role"), bool(root.get("aria-label"))) == ("img", True) or root.get(
        "aria-hidden"
    )
    assert not re.search(r"http|<style|<metadata|font-family|xmlns|xlink", svg)
    assert set(re.findall(r"url\((.)", svg)) <= {"#"}
    # the page's colours and no other
    assert not re.search(r"#[0-9a-f]{6}\b(?![\w-])", svg)
    known = {f"--series-{i}" for i in range(1, 9)} | {"--ink", "--muted", "--rule", "--paper"}
    known |= {"--tint", "--right", "--wrong"}
    assert set(re.findall(r"var\(([\w-]+)\)", svg)) <= known


def test_references_resolve_and_ids_do_not_clash() -> None:
    ids = []
    for key in ("one", "two"):
        svg = "".join(draw(what, f"{key}-{what}") for what in ("bars", "curves", "names", "heat"))
        here = re.findall(r' id="([^"]+)"', svg)
        assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg)) == set(here)
        ids += here
    assert ids
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_can_be_drawn(name: str) -> None:
    svg = plots.stacked_bars([name], [name], [[5]], key="k", label="l")
    texts = [element.text for element in ElementTree.fromstring(svg).iter("text")]
    shown = name.replace("\x00", "?").replace("\n", "?")
    assert shown in texts
    assert "<script" not in plots.heat_map([[1, 0], [0, 1]], ["<script>", "b"], key="k", label='"')


def test_the_callers_settings_neither_matter_nor_change() -> None:
    before = draw("curves")
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False, "svg.fonttype": "path"}):
        assert draw("curves") == before
        assert matplotlib.rcParams["font.size"] == 30


def test_gaps_and_single_points() -> None:
    assert plots.curves([Series("a", [1], [0.5]), Series("b", [], [])], key="k", label="l")
    assert plots.curves([Series("a", [1, 2], [0.0, 0.0])], key="k", label="l", percent=True)
    assert plots.curves([Series("a", [*range(1, 200)], [0.1] * 199)], key="k", label="l")


def test_lines_differ_without_colour() -> None:
    styles = [plots.line_style(i) for i in range(plots.MOST)]
    assert len({style["marker"] for style in styles}) == plots.MOST
    fills = [plots._fill_style(i)["hatch"] for i in range(plots.MOST)]
    assert len(set(fills)) == plots.MOST


def test_shades() -> None:
    assert plots.shade_levels([0, 1, 99]) == [0, 1, 10]
    assert plots.shade_levels([0, 0]) == [0, 0]


def test_a_hundred_classes_stay_small() -> None:
    svg = plots.heat_map(
        confusion(100, 0.6), [f"class {i}" for i in range(100)], key="k", label="l"
    )
    assert len(svg) < 100_000
