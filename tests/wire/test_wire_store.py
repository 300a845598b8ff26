"""What a checkpoint holds comes back to the last bit, or is refused with a name."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from colonnade.errors import RunError
from colonnade.role.recipe import Recipe, make_optimizer
from colonnade.wire import store

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
keys = text | st.integers(-9, 9) | st.sampled_from(["a", "a/b", "b", "0", "/", "'"])
shapes = st.lists(st.integers(0, 3), max_size=3)
tensors = st.builds(
    lambda shape, dtype: torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype),
    shapes,
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]),
)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text
trees = st.recursive(
    tensors | plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=10,
)


def identical(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, Mapping):
        # Order counts: the state of an optimiser is a dict in the order of its parameters.
        return list(a) == list(b) and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    return bool(a == b)


@given(trees)
def test_round_trip(tree: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tree"
        store.save(tree, path)
        assert identical(store.load(path), tree)


def test_names_that_join_to_the_same_path(tmp_path: Path) -> None:
    one, two, three = torch.zeros(1), torch.ones(2), torch.full((3,), 3.0)
    tree = {"a/b": one, "a": {"b": two}, 1: {"x": three}, "1": {"x": one}, "a/b'": two}
    store.save(tree, tmp_path / "tree")
    assert identical(store.load(tmp_path / "tree"), tree)


def test_special_numbers(tmp_path: Path) -> None:
    tree = [float("inf"), float("-inf"), -0.0, 2**80, True, 1, 1.0, "", None]
    store.save([*tree, float("nan")], tmp_path / "tree")
    *back, nan = store.load(tmp_path / "tree")
    assert [(type(v), str(v)) for v in back] == [(type(v), str(v)) for v in tree]
    assert nan != nan


def test_shared_and_strided_tensors(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    tree = {"whole": whole, "view": whole[1], "turned": whole.T}
    store.save(tree, tmp_path / "tree")
    assert identical(store.load(tmp_path / "tree"), tree)


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ({"a": {"b": object()}}, "state 'a/b' is a object"),
        ([{1, 2}], "is a set"),
        ({"a": b"bytes"}, "state 'a' is a bytes"),
        ({(1, 2): 3}, r"the key \(1, 2\) is neither text nor a number"),
        ({"f": len}, "builtin_function"),
    ],
)
def test_objects_are_refused_and_nothing_is_written(tree: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=why):
        store.save(tree, tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "3",
        "[]",
        "null",
        "{}",
        '{"dict": 3}',
        '{"dict": [["a"]]}',
        '{"tensor": "nowhere"}',
        '{"tensor": []}',
        '{"value": 1, "more": 2}',
        '{"class": "os.system"}',
        '{"list": [4]}',
        '{"list": null}',
    ],
)
def test_damaged_json(content: str, tmp_path: Path) -> None:
    path = tmp_path / "bank"
    store.save({"a": torch.zeros(2)}, path)
    path.with_suffix(".json").write_text(content)
    with pytest.raises(RunError, match=r"bank\.json is damaged"):
        store.load(path)


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-1], lambda d: d[:5], lambda d: b"", lambda d: b"\xff" * 64]
)
def test_damaged_tensors(damage: Any, tmp_path: Path) -> None:
    path = tmp_path / "bank"
    store.save({"a": torch.zeros(2)}, path)
    file = path.with_suffix(".safetensors")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(RunError, match=r"bank\.safetensors is damaged"):
        store.load(path)


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_missing_file(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "bank"
    store.save({"a": torch.zeros(2)}, path)
    path.with_suffix(suffix).unlink()
    with pytest.raises(RunError, match=rf"bank\{suffix}"):
        store.load(path)


@pytest.mark.parametrize("failing", ["save_file", "fsync"])
def test_a_failed_write_leaves_the_old_state(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bank"
    store.save({"a": torch.zeros(2), "n": 1}, path)

    def full(*arguments: Any) -> None:
        if failing == "save_file":
            Path(arguments[1]).write_bytes(b"the first half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store if failing == "save_file" else store.os, failing, full)
    with pytest.raises(OSError, match="No space"):
        store.save({"a": torch.ones(2), "n": 2}, path)
    monkeypatch.undo()
    assert identical(store.load(path), {"a": torch.zeros(2), "n": 1})


def test_a_failed_text_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    store.write_text("old", path)
    with pytest.raises(UnicodeEncodeError):
        store.write_text("new" * 10_000 + "\ud800", path)
    assert path.read_text() == "old"


# --- optimisers -----------------------------------------------------------------------------------


def network() -> nn.Sequential:
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4))
    return layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    x = torch.randn(5, 3, 6, 6, generator=torch.Generator().manual_seed(number))
    loss = model(x.contiguous(memory_format=torch.channels_last)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


RECIPES = [
    Recipe(optimizer="sgd", momentum=0.9),
    Recipe(optimizer="sgd", momentum=0.9, nesterov=True, weight_decay=0.01),
    Recipe(optimizer="adam", lr=0.01),
    Recipe(optimizer="adamw", lr=0.01, weight_decay=0.1),
    Recipe(optimizer="adagrad"),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: f"{r.optimizer}-{r.nesterov}")
def test_a_restored_optimizer_goes_on_with_the_same_bits(recipe: Recipe, tmp_path: Path) -> None:
    model = network()
    optimizer = make_optimizer(recipe, list(model.parameters()))
    for number in range(3):
        step(model, optimizer, number)
    store.save({"m": model.state_dict(), "o": optimizer.state_dict()}, tmp_path / "bank")
    saved = store.load(tmp_path / "bank")

    torch.manual_seed(99)  # other initial weights, so that nothing is equal by chance
    again = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4))
    again.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    restored = make_optimizer(recipe, list(again.parameters()))
    store.restore(again, saved["m"])
    store.restore(restored, saved["o"])

    weight = again[0].weight
    assert isinstance(weight, nn.Parameter)
    assert weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    kept = [v for v in restored.state[weight].values() if isinstance(v, Tensor) and v.dim() == 4]
    assert kept and all(value.stride() == weight.stride() for value in kept)

    for number in range(3, 6):
        step(model, optimizer, number)
        step(again, restored, number)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_restoring_does_not_write_into_what_was_saved(tmp_path: Path) -> None:
    """A checkpoint that one party holds in memory must not follow the training that goes on."""
    model = network()
    optimizer = make_optimizer(RECIPES[0], list(model.parameters()))
    step(model, optimizer, 0)
    store.save(optimizer.state_dict(), tmp_path / "bank")
    saved = store.load(tmp_path / "bank")
    before = json.dumps({k: v["momentum_buffer"].sum().item() for k, v in saved["state"].items()})
    store.restore(optimizer, saved)
    step(model, optimizer, 1)
    after = json.dumps({k: v["momentum_buffer"].sum().item() for k, v in saved["state"].items()})
    assert before == after
