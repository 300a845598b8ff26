"""A paper's table, ours against theirs: benchmarks/papers/*.toml in, a filled table out."""

from colonnade.reproduce.catalogue import find, folder, names
from colonnade.reproduce.flow import Request, check, device_for, jobs_for, reproduce
from colonnade.reproduce.queue import missing, perform
from colonnade.reproduce.screen import Screen, shelf, show, show_missing, show_shelf

__all__ = [
    "Request",
    "Screen",
    "check",
    "device_for",
    "find",
    "folder",
    "jobs_for",
    "missing",
    "names",
    "perform",
    "reproduce",
    "shelf",
    "show",
    "show_missing",
    "show_shelf",
]
