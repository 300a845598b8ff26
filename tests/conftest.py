"""For all tests: one nursery per test process, and which tests belong to which tier.

make check       all that is not marked: units, quick enough to run all day
make test        and what is marked `slow`: all methods in all runtimes, guides, papers
make test-long   what is marked `long`: chaos, NVFlare, the longest trainings
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import Nursery

from colonnade.deploy import supervisor


class Lazy:
    """A nursery that starts when the first test needs one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._nursery = folder, None

    def get(self) -> Nursery:
        if self._nursery is None:
            self._nursery = Nursery(self._folder).__enter__()
        return self._nursery

    def close(self) -> None:
        if self._nursery is not None:
            self._nursery.__exit__(None, None, None)


@pytest.fixture(scope="session")
def _lazy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lazy]:
    lazy = Lazy(tmp_path_factory.mktemp("n"))
    yield lazy
    lazy.close()


@pytest.fixture(scope="session")
def nursery(_lazy: Lazy) -> Nursery:
    return _lazy.get()


@pytest.fixture(scope="session", autouse=True)
def _parties_come_from_the_nursery(_lazy: Lazy) -> Iterator[None]:
    """`colonnade.run(…, runtime="process")` starts them in 20 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "party_program", lambda: (*_lazy.get().command(), "party"))
        yield


@pytest.fixture(scope="session")
def colonnade_path(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH on which `colonnade` starts quickly, for what a shell is told to do."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "colonnade"
    script.write_text("#!/bin/sh\nexec " + " ".join(nursery.command()) + ' "$@"\n')
    script.chmod(0o755)
    return os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
