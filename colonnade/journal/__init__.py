"""What a party must never forget: one append-only, checksummed file per party, outside run folders.

journal.py    the file: entries, their chain, the lock, what a crash leaves behind
rows.py       keyed names of records, and lists of them
counts.py     counts per record, and numbers that only rise, both booked ahead
"""

from colonnade.journal.counts import Mark, Tally
from colonnade.journal.journal import Anchor, Journal, default_place
from colonnade.journal.rows import Names

__all__ = ["Anchor", "Journal", "Mark", "Names", "Tally", "default_place"]
