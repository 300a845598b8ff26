"""What a server or an active party hands down in a tree is looked at before it is used: a role that
cannot use it says who sent it, and no error is the receiver's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import colonnade
from colonnade.errors import ColonnadeError, Untrusted, WireError
from colonnade.wire import Peer

NAN = float("nan")
BASE = {
    "seed": 3,
    "epochs": 2,
    "batch_size": 50,
    "batching": "papers",
    "model_options": {"hidden": [16]},
    "data": {"name": "digits", "train_rows": 200, "test_rows": 60, "validation": 0.2},
    "checkpoint": {"epochs": 0},
}
JOVEFL = BASE | {
    "method": "jovefl",
    "partition": {"kind": "rectangles", "rectangles": [[0, 0, 5, 8], [0, 2, 8, 6]]},
    "jovefl": {"dim": 4, "rate": "plateau"},
}
FEDEMB = BASE | {
    "method": "fedemb",
    "epochs": 1,
    "partition": {"kind": "columns", "parties": 2},
    "fedemb": {"groups": 20, "server_epochs": 1},
}
ADPT = BASE | {
    "method": "adptvfedconv",
    "epochs": 1,
    "model_options": {"width": 0.125, "fc": [16]},
    "partition": {"kind": "tiles", "grid": [1, 2]},
    "adptvfedconv": {"cut": "1C", "pretrain_epochs": 1, "finetune_epochs": 1},
}


def refusal(tree: dict[str, Any], out: Path, kind: str, lie: Callable[[Any], Any]) -> str:
    """What a run says whose second message of this Kind is a lie."""
    plain, sent = Peer.send, list[str]()

    def send(self: Any, of: Any, value: Any) -> None:
        sent.append(of.name)
        plain(self, of, lie(value) if (of.name, sent.count(kind)) == (kind, nth) else value)

    nth = 1 if kind == "extractor" else 2  # there is one of these
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Peer, "send", send)
        try:
            colonnade.run(tree, out=out)
        except ColonnadeError as error:
            assert isinstance(error, Untrusted | WireError), repr(error)
            return str(error)
    raise AssertionError("it was taken")


def weights(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda said: said | {"parameters": change(said["parameters"])}


HEADS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda said: {},
    "a number": lambda said: 3,
    "it answers nothing": lambda said: said | {"to": "x"},
    "it does not say when to stop": lambda said: said | {"stop": torch.ones(3)},
    "it does not say whether it forgot": lambda said: {
        k: v for k, v in said.items() if k != "forgotten"
    },
    "it has no number": lambda said: said | {"number": "x"},
    "its rate is words": lambda said: said | {"rate": "x"},
    "its rate is below nothing": lambda said: said | {"rate": -1.0},
    "no weights": lambda said: {k: v for k, v in said.items() if k != "parameters"},
    "one number for weights": weights(lambda tree: 5),
    "numbers for weights": weights(lambda tree: dict.fromkeys(tree, 3)),
    "weights of another head": weights(lambda tree: {f"x{k}": v for k, v in tree.items()}),
    "weights that would be spread": weights(lambda tree: {k: v[:1] for k, v in tree.items()}),
    "whole numbers": weights(lambda tree: {k: v.long() for k, v in tree.items()}),
    "a change to what was never sent": lambda said: {
        k: v for k, v in (said | {"coded": {}}).items() if k != "parameters"
    },
    "no buffers": lambda said: {k: v for k, v in said.items() if k != "buffers"},
    "buffers of nothing": lambda said: said | {"buffers": {"mean": torch.ones(3)}},
}


@pytest.mark.parametrize("lie", HEADS)
def test_a_common_head_that_is_none_is_its_servers(lie: str, tmp_path: Path) -> None:
    said = refusal(JOVEFL, tmp_path / "run", "global_head", HEADS[lie])
    assert "'server' sent" in said and "'party" not in said.partition("; ")[0]


def test_a_coded_head_that_is_none_is_its_servers(tmp_path: Path) -> None:
    tree = JOVEFL | {"jovefl": {"dim": 4, "compress": "scalar"}, "epochs": 3}
    plain: list[Any] = []

    def lie(said: Any) -> Any:
        plain.append(said)
        rest = {k: v for k, v in said.items() if k != "parameters"}
        return rest | {"coded": {name: {"packed": 3} for name in said.get("coded", "ab")}}

    said = refusal(tree, tmp_path / "run", "global_head", lie)
    assert "'server' sent" in said and plain


def without_first(tree: dict[str, Any]) -> dict[str, Any]:
    return dict(list(tree.items())[1:])


BLOCKS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda said: {},
    "a gap": without_first,
    "a tensor": lambda said: torch.ones(3),
    "numbers": lambda said: dict.fromkeys(said, 1.0),
    "what would be spread": lambda said: {k: v[:1] for k, v in said.items()},
}


@pytest.mark.parametrize("lie", BLOCKS)
def test_a_block_that_is_none_is_its_servers(lie: str, tmp_path: Path) -> None:
    assert "'server' sent" in refusal(FEDEMB, tmp_path / "run", "block", BLOCKS[lie])


SCORES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda said: {},
    "a tensor": lambda said: torch.ones(3),
    "numbers": lambda said: dict.fromkeys(said, 1.0),
    "fewer rows": lambda said: {k: v[:-1] for k, v in said.items()},
    "more classes": lambda said: {k: torch.cat([v, v], 1) for k, v in said.items()},
    "a measure of its own": lambda said: said | {"best": said["per_party"]},
    "not what counts": lambda said: {"late_fusion": said["late_fusion"]},
}


@pytest.mark.parametrize("lie", SCORES)
def test_scores_that_are_none_are_their_servers(lie: str, tmp_path: Path) -> None:
    assert "'server' sent" in refusal(FEDEMB, tmp_path / "run", "scores", SCORES[lie])


EXTRACTORS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda said: {},
    "a gap": without_first,
    "a tensor": lambda said: torch.ones(3),
    "numbers": lambda said: dict.fromkeys(said, 1.0),
    "another size": lambda said: {k: v[:1] if v.dim() else v for k, v in said.items()},
    "half numbers": lambda said: {k: v.half() for k, v in said.items()},
    "more": lambda said: said | {"x": torch.ones(3)},
}


@pytest.mark.parametrize("lie", EXTRACTORS)
def test_an_extractor_that_is_none_is_its_senders(lie: str, tmp_path: Path) -> None:
    """AdptVFedConv's active party hands its own down to all."""
    said = refusal(ADPT, tmp_path / "run", "extractor", EXTRACTORS[lie])
    assert "'party1' sent" in said and "'party2' sent" not in said
