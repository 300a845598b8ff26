"""What a party must never forget: one append-only, checksummed file per party, outside run folders.

journal.py    the file: entries, their chain, the lock, what a crash leaves behind
rows.py       keyed names of records, and lists of them
counts.py     counts per record, booked ahead
steps.py      the steps that were begun, and with whom
met.py        the rows that were evaluated, and by whom
releases.py   what was released within a privacy budget
answers.py    what stands in for labels, for ever
spendings.py  what protections have spent on records
spent.py      the same of all runs, listed and counted by record
left.py       digests of what has left with noise
exchanges.py  exchanges of rows without noise
run.py        what one run of the party uses of it
"""

from colonnade.journal.answers import Answers, Known
from colonnade.journal.counts import Tally
from colonnade.journal.exchanges import Exchanges
from colonnade.journal.journal import Anchor, Journal, default_place
from colonnade.journal.met import Meetings
from colonnade.journal.records import Names
from colonnade.journal.releases import Releases
from colonnade.journal.run import RunJournal
from colonnade.journal.spendings import Limit, Spending, Spendings
from colonnade.journal.steps import Steps

__all__ = [
    "Anchor",
    "Answers",
    "Exchanges",
    "Journal",
    "Known",
    "Limit",
    "Meetings",
    "Names",
    "Releases",
    "RunJournal",
    "Spending",
    "Spendings",
    "Steps",
    "Tally",
    "default_place",
]
