"""Colonnade: vertical and hybrid federated learning with deep models that exchange embeddings."""

import os

# Idle OpenMP threads that spin make a busy machine up to 100 times slower; this must be set
# before torch is imported, and whoever has set it already keeps the last word.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# cuBLAS repeats its results to the bit only with a workspace of fixed size.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

from colonnade.config import Config
from colonnade.errors import ColonnadeError
from colonnade.results.observer import Observer
from colonnade.results.result import Result
from colonnade.role.batches import Batch
from colonnade.role.method import Method, Role
from colonnade.role.party import Party
from colonnade.runs.predict import Prediction, Trained, load
from colonnade.runs.run import run
from colonnade.version import __version__
from colonnade.wire import Kind, Peer, recv_any

__all__ = [
    "Batch",
    "ColonnadeError",
    "Config",
    "Kind",
    "Method",
    "Observer",
    "Party",
    "Peer",
    "Prediction",
    "Result",
    "Role",
    "Trained",
    "__version__",
    "load",
    "recv_any",
    "run",
]
