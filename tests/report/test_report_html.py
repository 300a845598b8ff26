"""The page: complete, self-contained, well-formed, and safe with any name."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_examples import example, failed, phased

from colonnade.errors import RunError
from colonnade.report import write_report

VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = """<script>alert("x")</script>'"&amp;{{ 7*7 }}"""


class Page(HTMLParser):
    """Balanced tags, unique ids, and the text a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def page(tmp_path: Path, *results: dict[str, Any]) -> tuple[str, Page]:
    out = write_report(results, tmp_path / "report.html")
    text = out.read_text(encoding="utf-8")
    return text, Page(text)


def baselines() -> list[dict[str, Any]]:
    return [
        example("demo", "easter", everybody_predicts=True),
        example("local", "local", messages=False, accuracy=0.91),
        example("pooled", "centralised", parties=["all"], messages=False, accuracy=0.991),
        failed(),
    ]


CASES = {
    "one run": [example()],
    "with baselines": baselines(),
    "everybody predicts": [example(everybody_predicts=True)],
    "failed": [failed()],
    "several phases": [phased(), example()],
    "stopped": [example(status="stopped")],
    "no messages": [example(messages=False)],
    "two classes": [example(classes=["no", "yes"])],
    "a hundred classes": [example(classes=[f"class {i}" for i in range(100)])],
    "no classes": [example(classes=[])],
    "forty parties": [example(parties=[f"p{i}" for i in range(40)], everybody_predicts=True)],
    "hostile": [
        example(
            HOSTILE,
            HOSTILE,
            parties=[HOSTILE, "$b$"],
            classes=[HOSTILE, "d"],
            everybody_predicts=True,
            absent={HOSTILE: 0.5, "$b$": 0.6},
        ),
        example(HOSTILE),
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_self_contained_and_well_formed(tmp_path: Path, case: str) -> None:
    text, parsed = page(tmp_path, *CASES[case])
    assert not re.search(r"https?://|@import|javascript:", text)
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    names = {name for name, _ in parsed.attributes}
    assert not {"src", "srcset", "action", "onclick", "onload"} & names
    links = {value for name, value in parsed.attributes if name == "href" and value}
    assert all(link == "data:," or link.startswith("#") for link in links)
    assert "script" not in parsed.tags
    assert "default-src 'none'" in text
    assert "None" not in parsed.text
    assert "nan" not in parsed.text.split()


def test_hostile_names_are_text(tmp_path: Path) -> None:
    text, parsed = page(tmp_path, *CASES["hostile"])
    assert "<script" not in text
    assert HOSTILE in parsed.text
    assert not re.search(r"\b49\b", parsed.text.partition("Training")[0])  # no template in a name


def test_one_run_reads_in_order(tmp_path: Path) -> None:
    text, parsed = page(tmp_path, example())
    assert parsed.text.startswith(
        "demo · Colonnade report Colonnade report demo Four parties, each"
    )
    assert re.findall("<h2>(.*?)</h2>", text) == [
        "Accuracy and cost",
        "Training",
        "Which classes were mistaken",
        "What crossed the wire",
        "Who saw what",
        "Time",
        "Configuration",
        "Weights",
        "Environment",
        "How to get it again",
    ]
    assert "config.toml , then colonnade run config.toml On the same hardware" in parsed.text
    assert "98.61 %" in parsed.text
    assert "Reveals labels, through dL/dh_k" in parsed.text
    assert "party2 → party1" in parsed.text
    assert 'kind = "tiles" grid = [2, 2]' in parsed.text
    assert "record" not in parsed.text  # null in the config: TOML has none
    for word in ("Difference", "The other runs", "beside"):
        assert word not in parsed.text


def test_baselines_stand_below_with_their_difference(tmp_path: Path) -> None:
    text, parsed = page(tmp_path, *baselines())
    assert "demo , beside local, pooled and broken" in parsed.text
    assert "−5.96" in parsed.text  # 91.00 against the mean of 98.61, 97.51, 96.41, 95.31
    assert "+2.14" in parsed.text
    assert "broken (failed)" in parsed.text
    assert "demo, party by party" in parsed.text
    assert text.count("<details>") == 4 + 3  # a configuration each, and three other runs


def test_what_is_left_without_each_party(tmp_path: Path) -> None:
    run = example("demo", absent={"party4": 0.9861, "party2": 0.9011, "stranger": 0.1})
    text, parsed = page(tmp_path, run)
    assert "With one party absent Absent Test accuracy Difference, points party2" in parsed.text
    assert "party2 90.11 % −8.50 party4 98.61 % 0.00 The same trained networks" in parsed.text
    assert "stranger" not in text
    _, parsed = page(tmp_path, run, example("local", "local"))
    assert "With one party absent, demo" in parsed.text
    for without in (example(), example(absent={})):
        assert "With one party absent" not in page(tmp_path, without)[1].text


def test_a_failed_run_says_so(tmp_path: Path) -> None:
    _, parsed = page(tmp_path, failed())
    assert "This run failed ." in parsed.text
    assert "No epoch was measured." in parsed.text
    assert "No message was sent: nothing left any party." in parsed.text
    assert "No weights were kept." in parsed.text
    assert "Which classes" not in parsed.text


def test_confusion_by_number_of_classes(tmp_path: Path) -> None:
    few, parsed = page(tmp_path, example(classes=["no", "yes"]))
    assert "Most often no was taken for yes (10 rows, 1.0 % of its class)" in parsed.text
    assert 'class="heat"' not in few
    many, parsed = page(tmp_path, example(classes=[f"class {i}" for i in range(100)]))
    assert 'class="heat"' in many
    assert "Most frequent mistakes" in parsed.text
    assert len(many) < 300_000


def test_accuracy_is_held_against_the_largest_class(tmp_path: Path) -> None:
    """Nine of ten rows are of one class: 90 % is no achievement."""
    result = example(classes=["no", "yes"])
    result["metrics"]["test"]["confusion"] = [[900, 0], [80, 20]]
    _, parsed = page(tmp_path, result)
    assert "To answer no every time would be right for 90.0 % of the rows." in parsed.text
    assert "60.0 % were found (balanced accuracy)" in parsed.text


def test_many_parties_are_summed(tmp_path: Path) -> None:
    parties = [f"drone{i}" for i in range(40)]
    _, parsed = page(tmp_path, example(parties=parties, everybody_predicts=True))
    assert "39 × passive → drone0" in parsed.text
    assert "drone0 → 39 × passive" in parsed.text
    assert "25 others" in parsed.text
    assert "mean of 40 parties" in parsed.text
    assert "lowest" in parsed.text


def test_other_runtimes_are_named_in_the_command(tmp_path: Path) -> None:
    _, parsed = page(tmp_path, example(runtime="process"))
    assert "colonnade run config.toml --runtime process" in parsed.text


def test_losses_that_are_not_finite_leave_gaps(tmp_path: Path) -> None:
    result = example()
    result["history"][1]["parties"]["party1"]["loss"] = None
    result["history"][2]["parties"]["party1"]["loss"] = float("nan")
    text, _ = page(tmp_path, result)
    assert "nan" not in re.findall(r"\w+", text)


def test_phases_that_count_anew_follow_each_other(tmp_path: Path) -> None:
    result = example(epochs=3)
    result["history"] += [entry | {"phase": "tune"} for entry in result["history"]]
    text, _ = page(tmp_path, result)
    figure = text.split("Test accuracy</figcaption>")[1].split("</svg>")[0]
    assert re.findall(r">(\d)</text>", figure) == ["1", "2", "3", "4", "5", "6"]


def test_phases_have_a_table_and_training_the_curves(tmp_path: Path) -> None:
    text, parsed = page(tmp_path, phased())
    for caption in ("Test accuracy", "Training loss, phase train"):
        figure = text.split(f"{caption}</figcaption>")[1].split("</svg>")[0]
        assert re.findall(r">(\d)</text>", figure) == ["1", "2", "3", "4"]
    table = parsed.text.partition(" Phases ")[2].partition("Which classes")[0]
    assert table.startswith(
        "Phase Epochs Time Last numbers pretrain 3 6.00 s loss 3.33 (party1) transfer 2 4.00 s "
        "loss 5 (party2), 10 (party3), 15 (party4) upload 1 2.00 s – train 4 "
    )
    assert "median epoch of the phase train." in parsed.text
    assert "AdptVFedConv, 4 parties, 4 epochs" in parsed.text
    text, parsed = page(tmp_path, example(), phased())
    assert text.index("<h3>Phases</h3>") > text.index("The other runs")
    text, parsed = page(tmp_path, example())
    assert "Phase" not in parsed.text
    assert "median epoch." in parsed.text


def test_the_only_phase_may_have_any_name(tmp_path: Path) -> None:
    result = example()
    result["history"] = [entry | {"phase": "tune"} for entry in result["history"]]
    text, _ = page(tmp_path, result)
    assert "Training loss</figcaption>" in text


def test_a_phase_may_call_its_loss_by_another_name(tmp_path: Path) -> None:
    result = phased()
    last = next(e for e in reversed(result["history"]) if e["phase"] == "transfer")
    last["parties"]["party2"] = {"reconstruction": 0.0123, "test_personalised_accuracy": 0.5}
    last["parties"]["party3"] = {"loss": None}
    _, parsed = page(tmp_path, result)
    shown = "transfer 2 4.00 s reconstruction 0.0123 (party2); loss – (party3), 15 (party4) upload"
    assert shown in parsed.text


def test_numbers_whose_names_do_not_say_what_they_are_are_explained(tmp_path: Path) -> None:
    result = phased()
    _, plain = page(tmp_path, result)
    assert "Ppm" not in plain.text and "budget" not in plain.text
    assert "the weights are the same to the last bit" in plain.text
    last = next(e for e in reversed(result["history"]) if e["phase"] == "transfer")
    last["parties"]["party2"] = {"ppm_embedding": 0.9, "epsilon": 2.0}
    numbers = {name: f"what {name} is" for name in ("ppm_embedding", "epsilon", "ppm_output")}
    result["about"] = {"title": "Own", "trained": "", "repeats": True, "numbers": numbers}
    result["metrics"]["test"]["epsilon"] = {"party2": 2.0}
    _, parsed = page(tmp_path, result)
    assert "Ppm embedding: what ppm_embedding is." in parsed.text
    assert "Epsilon: what epsilon is." in parsed.text
    assert "Ppm output" not in parsed.text
    assert "last bit" not in parsed.text and "Noise and masks in the weights" in parsed.text
    del result["metrics"]["test"]["epsilon"]
    result["about"] = {"title": "Hetero-NN", "trained": "", "repeats": False}
    assert "last bit" not in page(tmp_path, result)[1].text


@pytest.mark.parametrize(
    ("tables", "again"),
    [
        ({"protect": {"delta": 1e-5}}, True),
        ({"protect": {"embedding_epsilon": 8.0}}, False),
        ({"protect": {"label_epsilon": 4.0, "simulate_noise_seed": 1}}, True),
        ({"fedemb": {"noise": 0.5}}, False),
        ({"fedemb": {"noise": 0.5}, "protect": {"simulate_noise_seed": 0}}, True),
    ],
)
def test_a_run_with_noise_of_its_own_does_not_repeat_itself(
    tables: dict[str, Any], again: bool, tmp_path: Path
) -> None:
    result = phased()
    result["method"] = "fedemb"
    result["config"].update(tables)
    assert ("the weights are the same to the last bit" in page(tmp_path, result)[1].text) is again


def test_of_very_many_parties_the_first_losses_are_named(tmp_path: Path) -> None:
    _, parsed = page(tmp_path, phased(parties=[f"p{i}" for i in range(40)]))
    assert re.search(
        r"transfer 2 4.00 s loss (\S+ \(p\d+\), ){5}\S+ \(p\d+\) … upload", parsed.text
    )


def test_what_parties_reach_beside_the_joint_network(tmp_path: Path) -> None:
    result = example()
    result["metrics"]["test"] |= {
        "alone": {"party2": 0.51, "party1": 0.4},
        "personalised": {"party3": 0.6},
    }
    measures = {"alone": "before the others", "personalised": "for itself", "returned": "later"}
    result["about"] = {"title": "Own", "trained": "", "repeats": True, "measures": measures}
    _, parsed = page(tmp_path, result)
    table = parsed.text.partition("Party by party ")[2]
    assert table.startswith(
        "Party Role Network Optimiser Test accuracy Alone Personalised "
        "party1 active cnn sgd, lr 0.05 98.61 % 40.00 % – "
        "party2 passive cnn sgd, lr 0.05 – 51.00 % – "
        "party3 passive cnn sgd, lr 0.05 – – 60.00 % Shares of the test rows. "
        "Alone: before the others. Personalised: for itself. "
    )
    many = example(parties=[f"p{i}" for i in range(40)])
    many["about"] = result["about"]
    many["metrics"]["test"]["alone"] = {f"p{i}": i / 100 for i in range(40)}
    _, parsed = page(tmp_path, many)
    assert "median 98.61 % 19.50 % highest 98.61 % 39.00 %" in parsed.text


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    one = write_report(baselines(), tmp_path / "a.html").read_bytes()
    assert one == write_report(baselines(), tmp_path / "b.html").read_bytes()


def test_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "new" / "report.html"
    assert write_report([example()], out) == out
    assert [p.name for p in out.parent.iterdir()] == ["report.html"]
    before = out.read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_report([failed()], out)
    assert out.read_bytes() == before
    assert [p.name for p in out.parent.iterdir()] == ["report.html"]


def test_mistakes_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="at least one run"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(RunError, match="is a folder"):
        write_report([example()], tmp_path)
    with pytest.raises(RunError, match="reads 1"):
        write_report([example() | {"schema": 9}], tmp_path / "report.html")
