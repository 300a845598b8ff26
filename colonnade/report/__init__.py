"""From results to something a person reads: tables in the terminal, one page in the browser."""

from colonnade.report.html import write_report
from colonnade.report.prose import sentences
from colonnade.report.schema import check, load_schema
from colonnade.report.tables import as_json, comparison, flows_table, summary

__all__ = [
    "as_json",
    "check",
    "comparison",
    "flows_table",
    "load_schema",
    "sentences",
    "summary",
    "write_report",
]
