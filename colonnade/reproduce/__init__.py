"""A paper's table, ours against theirs: benchmarks/papers/*.toml in, a filled table out."""

from colonnade.reproduce.catalogue import find, names
from colonnade.reproduce.flow import Request, check, reproduce
from colonnade.reproduce.screen import Screen, shelf, show, show_shelf

__all__ = [
    "Request",
    "Screen",
    "check",
    "find",
    "names",
    "reproduce",
    "shelf",
    "show",
    "show_shelf",
]
