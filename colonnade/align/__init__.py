"""Which rows are common to all parties: private set intersection, written as a role."""

from colonnade.align.ids import doubts, normalise
from colonnade.align.opening import Alignment
from colonnade.align.psi import KINDS, common_rows, kinds_of

__all__ = ["KINDS", "Alignment", "common_rows", "doubts", "kinds_of", "normalise"]
