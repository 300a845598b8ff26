"""Colonnade: vertical and hybrid federated learning with deep models that exchange embeddings."""

import os

# Idle OpenMP threads that spin make a busy machine up to 100 times slower; this must be set
# before torch is imported; a value that the user has set is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# gRPC writes lines of its own to the terminal, several per second while a peer cannot be reached;
# the mesh says the same in plain words. This must be set before grpc is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# cuBLAS repeats its results to the bit only with a workspace of fixed size.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

from importlib import import_module
from typing import TYPE_CHECKING, Any

from colonnade.errors import ColonnadeError
from colonnade.version import __version__

if TYPE_CHECKING:  # for whoever reads; when the program runs, `__getattr__` imports them
    from colonnade.config import Config
    from colonnade.results.observer import Observer
    from colonnade.results.prediction import Prediction
    from colonnade.results.result import Result
    from colonnade.role.batches import Batch
    from colonnade.role.method import Learning, Method, Role
    from colonnade.role.party import Party
    from colonnade.runs.predict import Trained, load
    from colonnade.runs.run import run
    from colonnade.runs.seeds import Seeds, run_seeds
    from colonnade.wire import Kind, Peer, recv_any

__all__ = [
    "Batch",
    "ColonnadeError",
    "Config",
    "Kind",
    "Learning",
    "Method",
    "Observer",
    "Party",
    "Peer",
    "Prediction",
    "Result",
    "Role",
    "Seeds",
    "Trained",
    "__version__",
    "load",
    "recv_any",
    "run",
    "run_seeds",
]

# Where the names come from that need PyTorch: it takes seconds, and `colonnade --version` none.
_MODULES = {
    "Batch": "colonnade.role.batches",
    "Config": "colonnade.config",
    "Kind": "colonnade.wire",
    "Learning": "colonnade.role.method",
    "Method": "colonnade.role.method",
    "Observer": "colonnade.results.observer",
    "Party": "colonnade.role.party",
    "Peer": "colonnade.wire",
    "Prediction": "colonnade.results.prediction",
    "Result": "colonnade.results.result",
    "Role": "colonnade.role.method",
    "Seeds": "colonnade.runs.seeds",
    "Trained": "colonnade.runs.predict",
    "load": "colonnade.runs.predict",
    "recv_any": "colonnade.wire",
    "run": "colonnade.runs.run",
    "run_seeds": "colonnade.runs.seeds",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'colonnade' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
