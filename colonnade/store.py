"""A tree of tensors and plain values on disk: safetensors for the tensors, JSON for the rest.

No pickle anywhere: loading can only ever produce tensors, dicts, lists, tuples, numbers, text
and None. Files are written beside their place and renamed, so a reader sees all or nothing.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from colonnade.errors import RunError


def save(tree: Any, path: Path) -> None:
    """Write `tree` as path.safetensors and path.json; the JSON file, last, makes it count."""
    tensors: dict[str, Tensor] = {}
    skeleton = _flatten(tree, "", tensors)
    write_tensors(tensors, path.with_suffix(".safetensors"))
    write_text(json.dumps(skeleton), path.with_suffix(".json"))


def load(path: Path) -> Any:
    """The tree that `save` wrote at `path`."""
    text = path.with_suffix(".json")
    tensors = read_tensors(path.with_suffix(".safetensors"))
    try:
        return _unflatten(json.loads(text.read_text()), tensors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{text}: not a state that Colonnade wrote ({error})") from error


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    # Each tensor gets memory of its own: safetensors refuses shared storage.
    own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    temporary = path.with_name(path.name + ".part")
    save_file(own, temporary)
    _rename(temporary, path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        loaded: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError, struct.error) as error:
        raise RunError(f"{path}: cannot be read as safetensors ({error})") from error
    return loaded


def write_array(tensor: Tensor, path: Path) -> None:
    """One large tensor, as NumPy's own format: from where it lies, without a copy of it."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        np.save(file, tensor.detach().cpu().numpy(), allow_pickle=False)
    _rename(temporary, path)


def read_array(path: Path) -> Tensor:
    try:
        return torch.from_numpy(np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise RunError(f"{path}: cannot be read as an array ({error})") from error


def write_text(text: str, path: Path) -> None:
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    _rename(temporary, path)


def _rename(temporary: Path, path: Path) -> None:
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def _flatten(node: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Tensors go to `tensors`; what is left is JSON in which every node says its type."""
    if isinstance(node, Tensor):
        while name in tensors:  # {"a/b": …} beside {"a": {"b": …}}
            name += "'"
        tensors[name] = node
        return {"tensor": name}
    if isinstance(node, dict):
        items = []
        for key, child in node.items():
            if not isinstance(key, str | int):
                raise RunError(f"state '{name}': the key {key!r} is neither text nor a number")
            items.append([key, _flatten(child, f"{name}/{key}" if name else str(key), tensors)])
        return {"dict": items}
    if isinstance(node, list | tuple):
        children = [_flatten(child, f"{name}/{i}", tensors) for i, child in enumerate(node)]
        return {"list" if isinstance(node, list) else "tuple": children}
    if node is None or isinstance(node, bool | int | float | str):
        return {"value": node}
    raise RunError(
        f"state '{name}' is a {type(node).__name__}; only tensors, numbers, text, None, "
        "lists, tuples and dicts of them can be kept"
    )


def _unflatten(node: Any, tensors: dict[str, Tensor]) -> Any:
    ((kind, content),) = node.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _unflatten(child, tensors) for key, child in content}
    if kind == "list":
        return [_unflatten(child, tensors) for child in content]
    if kind == "tuple":
        return tuple(_unflatten(child, tensors) for child in content)
    if kind == "value":
        return content
    raise KeyError(kind)


def restore(thing: Any, saved: Any) -> None:
    """Load `saved` into a module or optimiser, keeping its memory format and device."""
    thing.load_state_dict(saved)
    if isinstance(thing, torch.optim.Optimizer):
        # Fused steps walk parameter and momentum side by side in memory, so both need one layout.
        for parameter, values in thing.state.items():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
