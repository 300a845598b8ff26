"""For all tests: one nursery per test process, and which tests belong to which tier.

make check       all that is not marked: units, quick enough to run all day
make test        and what is marked `slow`: all methods in all runtimes, guides, papers
make test-long   what is marked `long`: chaos, NVFlare, the longest trainings
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import Nursery
from sklearn import datasets

from colonnade.deploy import supervisor

# By the beginning of a test's path. What is not named here is quick.
TIERS = {
    "chaos": "long",
    "deploy/nvflare": "long",
    "reproduce/test_reproduce_enrichment": "long",
    "conformance": "slow",
    "deploy/": "slow",
    "docs/test_examples": "slow",
    "docs/test_guide": "slow",
    "docs/test_reference": "slow",
    "own/": "slow",
    "cli/test_cli.py": "slow",
    "data/test_data_real": "slow",
    "data/test_own_files": "slow",
    "methods/test_fedemb_release": "slow",
    "methods/test_method_adptvfedconv": "slow",
    "methods/test_method_cvfl": "slow",
    "methods/test_method_easter": "slow",
    "methods/test_method_fedemb": "slow",
    "methods/test_method_heteronn": "slow",
    "methods/test_method_jovefl": "slow",
    "methods/test_method_splitnn": "slow",
    "report/test_report_html": "slow",
    "reproduce/test_reproduce_command": "slow",
    "reproduce/test_reproduce_papers": "slow",
    "reproduce/test_reproduce_queue": "slow",
    "runs/test_run": "slow",
    "wire/test_wire_reconcile": "slow",
}


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tier of every test."""
    here = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(here).as_posix()
        for beginning, tier in TIERS.items():
            if path.startswith(beginning):
                item.add_marker(tier)
                break


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


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so do its children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _quick_runs() -> Iterator[None]:
    """The digits are read once, and nothing here must outlive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load_digits", functools.cache(datasets.load_digits))
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _journals_lie_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Not in the home of whoever runs the tests; processes that tests start see it, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data-home")))
        yield


@pytest.fixture(scope="session")
def _lazy(_ctrl_c_is_heard: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lazy]:
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
