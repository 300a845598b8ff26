"""What tests of methods share."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

import pytest
from sklearn import datasets

from colonnade import methods


@pytest.fixture(scope="module")
def quick_runs() -> Iterator[None]:
    """The digits are read once, and nothing here must outlive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load_digits", functools.cache(datasets.load_digits))
        patch.setattr(os, "fsync", lambda file: None)
        patch.setattr(methods, "names", functools.cache(methods.names))
        yield
