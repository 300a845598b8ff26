"""What tests of methods share."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from colonnade import methods


@pytest.fixture(scope="module")
def quick_runs() -> Iterator[None]:
    """Plug-ins are looked for once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "names", functools.cache(methods.names))
        yield
