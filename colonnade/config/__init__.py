"""Reads and checks the settings of a run and of a federation; reports all mistakes at once."""

from colonnade.config.checks import check_name, same_but_for_case
from colonnade.config.reader import load
from colonnade.config.settings import FITS, Checkpoint, Config, Data, Deciding, Run, dumps

__all__ = [
    "FITS",
    "Checkpoint",
    "Config",
    "Data",
    "Deciding",
    "Run",
    "check_name",
    "dumps",
    "load",
    "same_but_for_case",
]
