"""The configuration: defaults, TOML in and out, every mistake at once, and the hash."""

from __future__ import annotations

import dataclasses
import re
import shutil
import typing
from pathlib import Path
from typing import Any

import pytest

from colonnade import methods
from colonnade.config import dumps, load
from colonnade.config import settings as config
from colonnade.errors import ConfigError
from colonnade.methods import splitnn
from colonnade.plugin import own
from colonnade.role.recipe import Recipe

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"


def problems(source: Any, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(source, overrides)
    return caught.value.problems


def only_problem(source: Any, *overrides: str) -> str:
    found = problems(source, *overrides)
    assert len(found) == 1, found
    return found[0]


def written(folder: Path, text: str, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# --- in and out -----------------------------------------------------------------------------------


def test_a_method_is_enough() -> None:
    settings = load({"method": "splitnn"})
    assert settings.data == config.Data() and settings.checkpoint == config.Checkpoint()
    assert settings.recipe == Recipe() and settings.options == splitnn.SplitNN()
    assert (settings.run.epochs, settings.run.batch_size, settings.run.seed) == (5, 128, 0)
    assert settings.partition is None and settings.parties == {}
    assert settings.run.name == "splitnn"


CONFIGS: dict[str, dict[str, Any]] = {
    "least": {},
    "top level": {
        "seed": 7,
        "epochs": 3,
        "batch_size": 32,
        "strict": True,
        "record": ["gradient"],
        "label_holder": "bank",
        "threads": 2,
        "evaluate_every": 0,
    },
    "recipe": {
        "model": "cnn",
        "model_options": {"width": 0.5},
        "optimizer": "adam",
        "lr": 1e-4,
        "weight_decay": 1,
        "schedule": "constant",
        "warmup": 0.5,
    },
    "options": {"splitnn": {"cut": "sum", "dim": 32, "hidden": 0}},
    "data": {"data": {"name": "adult", "test": 0.25, "validation": 0.1, "train_rows": 100}},
    "tiles": {"partition": {"kind": "tiles", "grid": [3, 2]}},
    "strips": {"partition": {"kind": "strips", "parties": 3, "axis": "rows"}},
    "rectangles": {"partition": {"kind": "rectangles", "rectangles": [[0, 0, 4, 8], [4, 0, 4, 8]]}},
    "columns": {"partition": {"kind": "columns", "sizes": [3, 4], "shuffle": True}},
    "overlap": {"partition": {"kind": "columns", "parties": 2, "column_overlap": 0.5}},
    "groups": {"partition": {"kind": "columns", "groups": {"bank": ["a*"], "shop": ["b", "c"]}}},
    "rows": {"partition": {"kind": "rows", "parties": 3, "alpha": 0.5, "row_overlap": 0.1}},
    "hybrid": {"partition": {"kind": "hybrid", "parties": 2, "row_overlap": 1}},
    "whole": {"partition": {"kind": "whole"}},
    "parties": {
        "lr": 0.1,
        "parties": {"bank": {"model": "cnn"}, "shop": {"optimizer": "adam", "lr": 0.001}},
    },
    "steps": {"checkpoint": {"epochs": 0, "steps": 10}},
    "threshold": {"decision": {"threshold": 0.2}},
    "rate": {"decision": {"rate": 0.1, "calibrate": "platt"}, "data": {"validation": 0.2}},
    "cost": {
        "decision": {"cost": {"false_positive": 1, "false_negative": 5.5}},
        "data": {"validation": 0.2},
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_toml_round_trip(name: str, tmp_path: Path) -> None:
    settings = load({"method": "splitnn"} | CONFIGS[name])
    again = load(written(tmp_path, dumps(settings)))
    assert again.sha256() == settings.sha256()
    assert (again.run, again.recipe, again.data) == (settings.run, settings.recipe, settings.data)
    assert (again.partition, again.parties) == (settings.partition, settings.parties)
    assert again.options == settings.options
    assert dumps(again) == dumps(settings)


def test_every_kind_of_partition_is_in_the_round_trip() -> None:
    kinds = {c["partition"]["kind"] for c in CONFIGS.values() if "partition" in c}
    assert kinds == set(typing.get_args(typing.get_type_hints(config.Partition)["kind"]))


def test_a_party_differs_only_where_it_says_so() -> None:
    settings = load({"method": "splitnn", "lr": 0.3, "parties": {"a": {"momentum": 0.5}, "b": {}}})
    assert settings.parties["a"] == Recipe(lr=0.3, momentum=0.5)
    assert settings.parties["b"] == settings.recipe


def test_the_dict_is_not_changed_by_overrides() -> None:
    source = {"method": "splitnn", "data": {"name": "digits"}}
    settings = load(source, ["data.name=mnist", "epochs=1"])
    assert settings.data.name == "mnist"
    assert source == {"method": "splitnn", "data": {"name": "digits"}}


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("bank-and-shop.toml", "bank-and-shop"),
        ("a run (2).toml", "a-run-2"),
        ("...toml", "run"),
        (".hidden.toml", "hidden"),
        ("ε.toml", "run"),
        (f"{'x' * 90}.toml", "x" * 64),
    ],
)
def test_a_run_named_after_its_file_stays_inside_runs(file: str, name: str, tmp_path: Path) -> None:
    settings = load(written(tmp_path, 'method = "splitnn"', file))
    assert settings.run.name == name
    assert load(written(tmp_path, 'method = "splitnn"\nname = "mine"', file)).run.name == "mine"


# --- mistakes -------------------------------------------------------------------------------------


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        method = "splitnn"
        epochs = 0
        bach_size = 4
        optimizer = "sdg"
        [data]
        test = 2.0
        nmae = "mnist"
        [partition]
        kind = "tiles"
        alpha = 1.0
        [splitnn]
        dimension = 3
        [parties."../x"]
        lr = "fast"
        """,
    )
    found = problems(path, "seed=-1", "nothing")
    expected = [
        "epochs = 0: at least 1",
        "seed = -1: at least 0",
        "'batch_size'",
        "optimizer = 'sdg'",
        "data.nmae|'nmae'.*'name'",
        "data.test = 2.0",
        "partition.alpha has no meaning",
        "'dimension'.*'dim'",
        r"party name '\.\./x'",
        r"lr = 'fast': must be a number",
        "--set nothing",
    ]
    for pattern in expected:
        assert any(re.search(pattern, p) for p in found), (pattern, found)
    assert len(found) == len(expected)


def test_wrong_types_do_not_hide_wrong_values() -> None:
    tree = {"epochs": "3", "lr": -1, "batch_size": 0, "model": "resnet", "schedule": "foo"}
    found = problems({"method": "splitnn", "splitnn": {"cut": "max", "dim": 0}, **tree})
    for key in (*tree, "splitnn.cut", "splitnn.dim"):
        assert any(key in problem for problem in found), key


def test_a_method_that_does_not_load_is_the_only_mistake() -> None:
    assert "no such file" in only_problem({"method": "nowhere.py", "nowhere": {"a": 1}})


def test_the_error_lists_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load({"method": "splitnn", "epochs": 0, "threads": 0})
    assert str(caught.value).splitlines() == [
        "2 mistakes in the configuration",
        "  - epochs = 0: at least 1",
        "  - threads = 0: from 1 to 1024",
    ]


@pytest.mark.parametrize(
    ("tree", "near"),
    [
        ({"epoch": 1}, "epochs"),
        ({"optimiser": "sgd"}, "optimizer"),
        ({"partitions": {}}, "partition"),
        ({"splitn": {}}, "splitnn"),
        ({"data": {"nam": "x"}}, "name"),
        ({"checkpoint": {"step": 1}}, "steps"),
        ({"partition": {"kind": "tiles", "gird": [2, 2]}}, "grid"),
        ({"splitnn": {"dims": 3}}, "dim"),
        ({"local": {"oracel": True}}, "oracle"),  # another method's table is read as well
        ({"parties": {"bank": {"learning": 1, "momentun": 0.1}}}, "momentum"),
        ({"model": "cn"}, "cnn"),
        ({"model": "cnn", "model_options": {"widht": 1}}, "width"),
        ({"record": ["embeding"]}, "embedding"),
        ({"method": "splitn"}, "splitnn"),
    ],
)
def test_the_nearest_name_is_offered(tree: dict[str, Any], near: str) -> None:
    found = problems({"method": "splitnn"} | tree)
    assert any(re.search(f"[Dd]id you mean '{near}'", p) for p in found), found


@pytest.mark.parametrize(
    ("tree", "where", "must"),
    [
        ({"epochs": "3"}, "epochs = '3'", "a whole number"),
        ({"epochs": 3.0}, "epochs = 3.0", "a whole number"),
        ({"epochs": True}, "epochs = True", "a whole number"),
        ({"seed": 1 << 63}, "seed = 9223372036854775808", "at most 64 bits"),
        ({"strict": 1}, "strict = 1", "true or false"),
        ({"strict": "true"}, "strict = 'true'", "true or false"),
        ({"lr": "0.1"}, "lr = '0.1'", "a number"),
        ({"lr": True}, "lr = True", "a number"),
        ({"lr": float("nan")}, "lr = nan", "a number"),
        ({"lr": float("inf")}, "lr = inf", "a number"),
        ({"warmup": float("nan")}, "warmup = nan", "a number"),
        ({"weight_decay": 10**400}, "weight_decay = 1000", "a number"),
        ({"name": 3}, "name = 3", "a text"),
        ({"device": "tpu"}, "device = 'tpu'", "one of 'cpu', 'cuda'"),
        ({"record": "gradient"}, "record = 'gradient'", "a list, each a text"),
        ({"record": [3]}, "record = [3]", "a list, each a text"),
        ({"model_options": 3}, "model_options = 3", "a table"),
        ({"data": 3}, "data = 3", "a table, [data]"),
        ({"splitnn": "sum"}, "splitnn = 'sum'", "a table, [splitnn]"),
        ({"parties": ["bank"]}, "parties = ['bank']", "a table, [parties]"),
        ({"parties": {"bank": 3}}, "parties.bank = 3", "a table, [parties.bank]"),
        ({"parties": {"bank": {"lr": []}}}, "parties.bank.lr = []", "a number"),
        ({"partition": {"kind": "tile"}}, "partition.kind = 'tile'", "one of 'tiles'"),
        ({"partition": {"kind": "tiles", "grid": [2]}}, "partition.grid = [2]", "a whole number"),
        (
            {"partition": {"kind": "columns", "sizes": [1, "2"]}},
            "partition.sizes = [1, '2']",
            "a list, each a whole number",
        ),
        (
            {"partition": {"kind": "columns", "groups": {"a": "x"}}},
            "partition.groups = {'a': 'x'}",
            "a table, each a list",
        ),
        (
            {"partition": {"kind": "rectangles", "rectangles": [[0, 0, 4]]}},
            "partition.rectangles = [[0, 0, 4]]",
            "a list, each [",
        ),
        ({"partition": {}}, "partition.kind is missing", "it must be one of 'tiles'"),
        ({"splitnn": {"cut": "max"}}, "splitnn.cut = 'max'", "'concat', 'sum', 'mean'"),
    ],
)
def test_wrong_types(tree: dict[str, Any], where: str, must: str) -> None:
    found = only_problem({"method": "splitnn"} | tree)
    assert found.startswith(where) and must in found


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        ({"batch_size": 0}, "batch_size = 0: at least 1"),
        ({"threads": 0}, "threads = 0: from 1 to 1024"),
        ({"threads": 10**12}, "threads = 1000000000000: from 1 to 1024"),
        ({"evaluate_every": -1}, "evaluate_every = -1: at least 0"),
        ({"name": "../up"}, "name '../up': use letters"),
        ({"name": "a/b"}, "name 'a/b': use letters"),
        ({"name": "-rf"}, "name '-rf': use letters"),
        ({"name": "x\n"}, "use letters"),
        ({"lr": 0}, "lr = 0.0: above 0"),
        ({"lr": -0.1}, "lr = -0.1: above 0"),
        ({"momentum": 1.0}, "momentum = 1.0: at least 0 and below 1"),
        ({"nesterov": True, "momentum": 0}, "nesterov = true needs a momentum"),
        ({"warmup": -1}, "warmup = -1.0: at least 0"),
        ({"data": {"validation": 1.0}}, "data.validation = 1.0: at least 0 and below 1"),
        ({"data": {"test": 0}}, "data.test = 0.0: above 0 and below 1"),
        ({"data": {"train_rows": -1}}, "data.train_rows = -1: at least 0"),
        ({"data": {"classes": ["a"]}}, "data.classes = ['a']: at least two"),
        ({"data": {"classes": ["a", "b", "a"]}}, "data.classes names 'a' more than once"),
        ({"checkpoint": {"steps": -1}}, "checkpoint.steps = -1: at least 0"),
        ({"decision": {"threshold": 1.5}}, "decision.threshold = 1.5: from 0 to 1"),
        ({"decision": {"threshold": 0.5, "rate": 0.1}, "data": {"validation": 0.1}}, "keep one"),
        ({"decision": {"rate": 0.1}}, "set validation below [data]"),
        ({"decision": {"calibrate": "platt"}}, "decision.calibrate: what is chosen needs"),
        (
            {"decision": {"rate": 0.1}, "data": {"validation": 0.1}, "evaluate_every": 0},
            "set evaluate_every = 1",
        ),
        (
            {"decision": {"cost": {"false_negative": 1}}, "data": {"validation": 0.1}},
            "decision.cost does not say false_positive",
        ),
        ({"partition": {"kind": "tiles", "sizes": [1]}}, 'no meaning for kind = "tiles"'),
        ({"partition": {"kind": "columns", "groups": {"../": ["a"]}}}, "groups name '../'"),
        ({"splitnn": {"dim": 0}}, "splitnn.dim = 0: at least 1"),
        ({"splitnn": {"hidden": -1}}, "splitnn.hidden = -1: at least 0"),
        ({"method": "local", "local": {"dim": -1}}, "local.dim = -1: at least 1"),
        ({"method": "centralised", "centralised": {"dim": 0}}, "centralised.dim = 0: at least 1"),
        ({"parties": {"Bank": {}, "bank": {}}}, "'Bank' and 'bank' differ in case only"),
        ({"parties": {"": {}}}, "party name '': use letters"),
        ({"parties": {"a.b": {}}}, "party name 'a.b': use letters"),
        ({"parties": {"bank": {"model": "gpt"}}}, "no model 'gpt' as parties.bank.model"),
        ({"parties": {"bank": {"lr": 0}}}, "parties.bank.lr = 0.0: above 0"),
    ],
)
def test_wrong_values(tree: dict[str, Any], problem: str) -> None:
    assert problem in only_problem({"method": "splitnn"} | tree)


@pytest.mark.parametrize(
    "source", [{"method": object()}, {"method": "splitnn", "record": {1, 2}}, {"seed": 1j}]
)
def test_what_toml_cannot_say(source: dict[str, Any]) -> None:
    assert "give numbers, text, lists and dicts" in only_problem(source)


def test_a_dict_that_holds_itself() -> None:
    source: dict[str, Any] = {"method": "splitnn"}
    source["data"] = source
    assert "Circular reference" in only_problem(source)


def test_no_method_at_all() -> None:
    found = only_problem({})
    assert found.startswith("method is missing; one of ") and "splitnn" in found


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    assert "No such file" in only_problem(tmp_path / "nowhere.toml")
    assert "Is a directory" in only_problem(tmp_path)
    (tmp_path / "image.toml").write_bytes(b"\x89PNG\xff")
    assert "not a text file" in only_problem(tmp_path / "image.toml")
    found = only_problem(written(tmp_path, "method = splitnn"))
    assert "is not valid TOML" in found and "line 1" in found


def test_a_party_named_twice(tmp_path: Path) -> None:
    path = written(tmp_path, 'method = "splitnn"\n[parties.bank]\n[parties.bank]\n')
    assert "line 3: [parties.bank] is there twice" in only_problem(path)


# --- overrides ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("epochs=3", 3),
        ("lr=1e-3", 0.001),
        ("strict=true", True),
        ("record=['gradient']", ("gradient",)),
        ("model=cnn", "cnn"),
        ('model="cnn"', "cnn"),
        (" epochs = 3", 3),
        ("name=007", "007"),
    ],
)
def test_overrides(text: str, value: object) -> None:
    settings = load({"method": "splitnn"}, [text])
    key = text.partition("=")[0].strip()
    found = getattr(settings.run, key, None) or getattr(settings.recipe, key, None)
    assert found == value and type(found) is type(value)


def test_overrides_reach_into_tables_and_the_last_one_counts() -> None:
    settings = load(
        {"method": "splitnn", "splitnn": {"dim": 4}},
        ["splitnn.cut=sum", "parties.bank.lr=0.5", "data.name=x", "data.name=digits", "seed=1"],
    )
    assert settings.options == splitnn.SplitNN(cut="sum", dim=4)
    assert settings.parties["bank"].lr == 0.5
    assert (settings.data.name, settings.run.seed) == ("digits", 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("epochs", "--set epochs: write it as key=value"),
        ("=3", "--set =3: write it as key=value"),
        ("epochs.x=3", "--set epochs.x=3: 'epochs' is a value, not a table"),
        ("epoch=3", "did you mean 'epochs'"),
        ("epochs=", "epochs = '': must be a whole number"),
        ("splitnn.=3", "no key ''"),
    ],
)
def test_wrong_overrides(text: str, why: str) -> None:
    assert why in only_problem({"method": "splitnn", "epochs": 2}, text)


def test_mean_and_spread_belong_together() -> None:
    said = only_problem({"method": "splitnn", "data": {"mean": 3.0}})
    assert "data.mean and spread belong together" in said
    said = only_problem({"method": "splitnn", "data": {"mean": 3.0, "spread": 0.0}})
    assert "data.spread = 0.0: above 0" in said


def test_a_finished_config_takes_no_overrides() -> None:
    settings = load({"method": "splitnn"})
    assert load(settings) is settings
    assert "overrides need a file" in only_problem(settings, "epochs=3")


@pytest.mark.parametrize(
    ("task", "metric", "said"),
    [
        ("auto", "acuracy", "no metric 'acuracy': did you mean 'accuracy'?"),
        ("binary", "ece", "no metric 'ece' for two classes: did you mean 'calibration_error'?"),
        ("regression", "auc", "this task is regression: one of rmse, mae, r2"),
    ],
)
def test_a_metric_is_one_that_the_task_has(task: str, metric: str, said: str) -> None:
    assert said in only_problem({"method": "splitnn", "task": task, "metric": metric})
    load({"method": "splitnn", "task": "auto", "metric": "rmse"})  # the labels may be numbers


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {}}, "set data.validation, such as 0.2"),
        ({"evaluate_every": 0}, "set evaluate_every = 1"),
        ({"method": "fedemb"}, "patience = 5: fedemb cannot stop by itself. Omit patience, or "),
        ({"patience": 0, "min_delta": 0.1}, "min_delta = 0.1 has no effect without patience"),
    ],
)
def test_a_run_that_is_to_stop_by_itself_has_what_that_needs(
    changes: dict[str, Any], said: str
) -> None:
    base = {"method": "splitnn", "patience": 5, "data": {"validation": 0.2}}
    load(base)
    assert said in only_problem(base | changes)


# --- the hash -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override",
    [
        "seed=1", "epochs=6", "batch_size=64", "evaluate_every=2", "threads=2", "device=cuda",
        "strict=true", "record=['gradient']", "label_holder=party2", "label_only=true",
        "absence=false", "batching=papers",
        "task=binary", "metric=auc", "positive=1", "class_weight=balanced",
        "model=cnn", "model_options.hidden=[8]", "optimizer=adam", "lr=0.05", "momentum=0.8",
        "nesterov=true", "weight_decay=0.1", "schedule=constant", "warmup=1.0",
        "precision=bfloat16", "clip_norm=1.0", "patience=3", "min_delta=0.01",
        "data.name=digits", "data.test=0.3", "data.validation=0.1", "data.train_rows=9",
        "data.test_rows=9", "data.standardise=false", "data.flip=true", "data.shift=1",
        "data.upside_down=true", "data.official=false", "data.classes=['no', 'yes']",
        "data.mean=4000 data.spread=2500",
        "checkpoint.epochs=2", "checkpoint.steps=5",
        "partition.kind=strips", "splitnn.cut=sum", "splitnn.dim=64", "splitnn.hidden=0",
        "parties.bank.lr=0.1", "method=local",
    ],
)  # fmt: skip
def test_every_setting_is_in_the_hash(override: str) -> None:
    source = {"method": "splitnn", "patience": 5, "data": {"validation": 0.2}}
    overrides = re.split(r" (?=data\.)", override)  # two of them belong together
    assert load(source, overrides).sha256() != load(source).sha256()


@pytest.mark.parametrize(
    "override",
    [
        "decision.threshold=0.3", "decision.rate=0.1", "decision.calibrate=isotonic",
        "decision.cost={false_positive = 1, false_negative = 5}",
    ],
)  # fmt: skip
def test_how_it_decides_is_in_the_hash(override: str) -> None:
    source = {"method": "splitnn", "data": {"validation": 0.2}}
    assert load(source, [override]).sha256() != load(source).sha256()


def test_the_hash_test_names_every_setting() -> None:
    """A new setting must be added to the list above, or be left out of the hash on purpose."""
    overrides = " ".join(test_every_setting_is_in_the_hash.pytestmark[0].args[1])
    keys = set(re.findall(r"([\w.]+)=", overrides))
    fields = {f.name for c in (config.Run, Recipe) for f in dataclasses.fields(c)}
    fields |= {f"data.{f.name}" for f in dataclasses.fields(config.Data)}
    fields |= {f"checkpoint.{f.name}" for f in dataclasses.fields(config.Checkpoint)}
    assert fields - {key.replace("model_options.hidden", "model_options") for key in keys} == {
        "name"
    }


def test_neither_name_nor_place_nor_the_order_of_keys_is_in_the_hash(tmp_path: Path) -> None:
    one = written(tmp_path, 'method = "splitnn"\nseed = 3\nname = "a"', "one.toml")
    (tmp_path / "sub").mkdir()
    two = written(tmp_path / "sub", 'seed = 3\nmethod = "splitnn"', "two.toml")
    assert load(one).sha256() == load(two).sha256()


def test_a_method_file_is_in_the_hash_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder in ("a", "b"):
        shutil.copy(EXAMPLE, tmp_path / folder / "mine.py")
        written(tmp_path / folder, 'method = "mine.py"')
    first, second = (load(tmp_path / f / "run.toml", rule=own) for f in ("a", "b"))
    assert first.sha256() == second.sha256()
    assert first.sha256() != load({"method": "splitnn"}).sha256()
    file = tmp_path / "b" / "mine.py"
    file.write_text(file.read_text() + "\n# a changed line\n")
    assert load(tmp_path / "b" / "run.toml", rule=own).sha256() != first.sha256()


def test_a_method_file_is_found_beside_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(EXAMPLE, tmp_path / "mine.py")
    path = written(tmp_path, 'method = "mine.py"\n[sumscores]\nshrink = 0.5')
    monkeypatch.chdir("/")
    settings = load(path, rule=own)
    assert settings.options.shrink == 0.5 and settings.resolved()["method"] == "mine.py"
    assert methods.find("mine.py", tmp_path).sha256 == settings.found.sha256


def test_a_mistake_that_parties_inherit_is_reported_once() -> None:
    tree = {"method": "splitnn", "lr": -1, "parties": {"a": {}, "b": {"momentum": 2}}}
    found = problems(tree)
    assert [p for p in found if "lr" in p] == ["lr = -1.0: above 0"]
    assert any(p.startswith("parties.b.momentum = 2") for p in found)


def test_what_other_projects_call_a_setting_is_understood() -> None:
    with pytest.raises(ConfigError, match=r"no key 'learning_rate' .* did you mean 'lr'\?"):
        load({"method": "splitnn", "learning_rate": 0.1})


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"dim": 4}, "no key 'dim' at the top level: it belongs below [splitnn]"),
        ({"minimum": 4}, "it belongs below [align]"),
        ({"leave_out": ["x"]}, "it belongs below [parties.NAME]"),
        ({"minimun": 4}, "did you mean 'minimum', which belongs below [align]?"),
        ({"splitnn": {"epochs": 4}}, "in [splitnn]: it belongs at the top level"),
        ({"data": {"seed": 4}}, "no key 'seed' in [data]: it belongs at the top level"),
        ({"parties": {"a": {"dim": 4}}}, "in [parties.a]: it belongs below [splitnn]"),
    ],
)
def test_a_key_in_the_wrong_table(tree: dict[str, Any], said: str) -> None:
    assert said in only_problem({"method": "splitnn", **tree})


@pytest.mark.parametrize("key", ["val_split", "shuffle", "workers"])
def test_no_name_is_suggested_that_has_little_in_common(key: str) -> None:
    assert "did you mean" not in only_problem({"method": "splitnn", key: 1})
