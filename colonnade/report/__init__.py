"""From results to something a person reads: tables in the terminal, one page in the browser."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from colonnade.report.flows import flows_table
    from colonnade.report.html import write_report
    from colonnade.report.prose import sentences
    from colonnade.report.schema import check, load_schema
    from colonnade.report.tables import as_json, comparison, different_data, incomparable, summary

__all__ = [
    "as_json",
    "check",
    "comparison",
    "different_data",
    "flows_table",
    "incomparable",
    "load_schema",
    "sentences",
    "summary",
    "write_report",
]

# Imported when they are first used: `colonnade ledger` checks and shows a run without PyTorch.
_MODULES = {
    "as_json": "tables",
    "check": "schema",
    "comparison": "tables",
    "different_data": "tables",
    "flows_table": "flows",
    "incomparable": "tables",
    "load_schema": "schema",
    "sentences": "prose",
    "summary": "tables",
    "write_report": "html",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'colonnade.report' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
