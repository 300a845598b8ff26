"""A tree of tensors and plain values on disk: safetensors for the tensors, JSON for the rest.

No pickle anywhere: loading can only ever produce tensors, dicts, lists, tuples, numbers, text
and None. Files are written beside their place and renamed, so a reader sees all or nothing. The
JSON file holds a digest of itself and one of the tensors, so a damaged disk is noticed. That
guards against accidents: whoever can change a file can also change its digest.
"""

from __future__ import annotations

import hashlib
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
    skeleton = json.dumps(_flatten(tree, "", tensors))
    digest = write_tensors(tensors, path.with_suffix(".safetensors"))
    write_text(_sealed(digest, skeleton), path.with_suffix(".json"))


def load(path: Path) -> Any:
    """The tree that `save` wrote at `path`; refused unless every bit is as it was written."""
    text, file = path.with_suffix(".json"), path.with_suffix(".safetensors")
    try:
        found = text.read_text(encoding="utf-8")
        content = json.loads(found)
        if "tree" not in content:  # older versions wrote the tree alone, without digests
            return _unflatten(content, read_tensors(file))
        digest, skeleton = content["sha256"]["tensors"], content["tree"]
        if found != _sealed(digest, json.dumps(skeleton)):
            raise ValueError("its digest does not fit")
        _check(file, digest)
        return _unflatten(skeleton, read_tensors(file))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{text} is damaged: not what Colonnade wrote ({error})") from error


def write_tensors(tensors: dict[str, Tensor], path: Path) -> str:
    """Write named tensors as safetensors; returns the file's digest."""
    # Each tensor gets memory of its own: safetensors refuses shared storage.
    own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    temporary = path.with_name(path.name + ".part")
    save_file(own, temporary)
    digest = _sha256(temporary)
    _rename(temporary, path)
    return digest


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        loaded: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError, struct.error) as error:
        raise RunError(f"{path}: cannot be read as safetensors ({error})") from error
    return loaded


def write_array(tensor: Tensor, path: Path) -> None:
    """One large tensor, as NumPy's own format, and its digest in a file beside it: from where it
    lies, without a copy of it."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        np.save(file, tensor.detach().cpu().numpy(), allow_pickle=False)
    write_text(_sha256(temporary), _digest_of(path))  # first: an array never lacks its digest
    _rename(temporary, path)


def read_array(path: Path) -> Tensor:
    """The tensor that `write_array` wrote; refused unless every bit is as it was written."""
    check_array(path)
    try:
        return torch.from_numpy(np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise RunError(f"{path}: cannot be read as an array ({error})") from error


def check_array(path: Path) -> None:
    """Refuse an array that is not what `write_array` wrote, without reading it into memory."""
    try:
        _check(path, _digest_of(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is damaged: it has no digest ({error})") from error


def remove_array(path: Path) -> None:
    path.unlink()
    _digest_of(path).unlink(missing_ok=True)


def write_text(text: str, path: Path) -> None:
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    _rename(temporary, path)


def _digest_of(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _check(path: Path, sha256: str) -> None:
    try:
        found = _sha256(path)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    if found != sha256:
        raise RunError(f"{path} is damaged: its digest is not that of what was written")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sealed(digest: str, skeleton: str) -> str:
    """The text of a JSON file: the tree, its digest, and that of its tensors."""
    own = hashlib.sha256(skeleton.encode()).hexdigest()
    return f'{{"sha256": {{"tensors": {json.dumps(digest)}, "tree": "{own}"}}, "tree": {skeleton}}}'


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
