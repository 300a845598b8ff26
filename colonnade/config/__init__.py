"""One flat TOML file describes a run, another one a federation; mistakes are told all at once."""

from colonnade.config.settings import (
    FITS,
    Checkpoint,
    Config,
    Data,
    Run,
    check_name,
    dumps,
    load,
    read,
    same_but_for_case,
    unknown,
)

__all__ = [
    "FITS",
    "Checkpoint",
    "Config",
    "Data",
    "Run",
    "check_name",
    "dumps",
    "load",
    "read",
    "same_but_for_case",
    "unknown",
]
