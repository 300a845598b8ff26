"""Looks at a tree of weights that another party sent before anything is made of it.

A Kind that is a tree allows any tree. And a tensor that is copied into another is spread over it
without a word, where it has fewer numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from colonnade.errors import Untrusted, foreign


def check_weights(
    sender: str, what: str, tree: object, like: Mapping[str, Tensor], *, some: bool = False
) -> None:
    """Refuse a tree that has other names, shapes or dtypes than `like`.

    some  it need not have all of its names
    """
    found: Mapping[object, object] = tree if isinstance(tree, Mapping) else {}
    strange = [name for name in found if name not in like]
    gone = [name for name in like if name not in found and not some]
    wrong = [name for name, x in like.items() if name in found and not _same(found[name], x)]
    if isinstance(tree, Mapping) and not (strange or gone or wrong):
        return
    first = foreign(str((wrong or gone or strange or ["all of it"])[0]), 100)
    raise Untrusted(
        f"'{sender}' sent '{what}' that does not fit: '{first}' is not there, or not of the shape "
        "and dtype that are due. Do all parties have the same model_options?"
    )


def _same(found: object, due: Tensor) -> bool:
    return isinstance(found, Tensor) and found.shape == due.shape and found.dtype == due.dtype
