"""Which rows are common to all parties: private set intersection, written as a role."""

from colonnade.align.ids import normalise
from colonnade.align.psi import KINDS, Alignment, common_rows

__all__ = ["KINDS", "Alignment", "common_rows", "normalise"]
