"""The schema is itself valid, describes every key, and refuses what it does not know."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest
from report_examples import example, failed, phased

from colonnade.errors import RunError
from colonnade.report import check, load_schema

EXAMPLES = {
    "whole": example(),
    "everybody predicts": example(everybody_predicts=True),
    "no messages": example(messages=False),
    "a party absent": example(absent={"party2": 0.91, "party4": 0.5}),
    "no classes": example(classes=[]),
    "failed": failed(),
    "several phases": phased(),
}


def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(load_schema())


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(load_schema())


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_fit(name: str) -> None:
    validator().validate(EXAMPLES[name])
    check(EXAMPLES[name])


def test_every_key_is_described() -> None:
    def walk(node: Any, where: str) -> list[str]:
        missing = []
        for group in ("properties", "$defs"):
            for key, child in node.get(group, {}).items():
                if "description" not in child:
                    missing.append(f"{where}.{key}")
                missing += walk(child, f"{where}.{key}")
        for group in ("items", "additionalProperties"):
            if isinstance(node.get(group), dict):
                missing += walk(node[group], f"{where}[]")
        return missing

    assert walk(load_schema(), "result") == []


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("data",),
        ("wire",),
        ("wire", "by_phase"),
        ("wire", "by_phase", "train"),
        ("wire", "by_kind", "embedding"),
        ("wire", "by_party", "party1"),
        ("wire", "flows", 0),
        ("timing",),
        ("environment",),
        ("metrics", "test"),
        ("history", 0),
    ],
)
def test_a_typo_fails_at_every_fixed_level(path: tuple[str | int, ...]) -> None:
    result = copy.deepcopy(EXAMPLES["whole"])
    node = result
    for step in path:
        node = node[step]
    node["acuracy"] = 1
    with pytest.raises(jsonschema.ValidationError, match="acuracy"):
        validator().validate(result)


@pytest.mark.parametrize(
    ("key", "value"),
    [("schema", 2), ("status", "done"), ("parties", []), ("config_sha256", "ABC"), ("seed", 1.5)],
)
def test_wrong_values_fail(key: str, value: object) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(EXAMPLES["whole"] | {key: value})


def test_accuracies_are_fractions() -> None:
    result = copy.deepcopy(EXAMPLES["whole"])
    result["metrics"]["test"]["accuracy"] = 98.6
    with pytest.raises(jsonschema.ValidationError, match="maximum"):
        validator().validate(result)


def test_similarities_are_no_shares() -> None:
    result = copy.deepcopy(EXAMPLES["whole"])
    result["metrics"]["test"] |= {"ssim": {"party2": -0.02}, "psnr": {"party2": 24.1}}
    result["metrics"]["test"]["personalised"] = {"party2": 0.6}
    validator().validate(result)
    for measure, value in {"ssim": 87.0, "psnr": float("inf"), "personalised": 60.0}.items():
        wrong = copy.deepcopy(result)
        wrong["metrics"]["test"][measure] = {"party2": value}
        with pytest.raises(jsonschema.ValidationError, match="maximum"):
            validator().validate(wrong)


def test_check_names_every_problem() -> None:
    result = EXAMPLES["whole"] | {"metric": {}}
    del result["wire"]
    with pytest.raises(RunError, match=r"'demo'.*'wire' is missing.*did you mean 'metrics'"):
        check(result)


def test_check_refuses_another_version() -> None:
    with pytest.raises(RunError, match=r"schema 2, this Colonnade reads 1"):
        check(EXAMPLES["whole"] | {"schema": 2})
