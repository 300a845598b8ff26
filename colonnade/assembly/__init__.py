"""Makes the parties of a run from a configuration: who holds which rows and plays which role.

All mistakes in the input are found here, before a run folder exists. On their way to a party, rows
are:

    data.Dataset      a known data set, not yet divided
    partition.Part    one party's part of it
    memory.Given      one party's arrays, as the caller gave them
    data.own.Own      the content of one party's file; its rows are divided by their ids
    Holding           one party's training, validation and test rows, not yet prepared
    OwnRows           the same from a party's own file, prepared, with facts about them
    role.party.Party  the party that trains on them
"""

from colonnade.assembly.cast import Assembly, schedule_of
from colonnade.assembly.catalogue import from_catalogue
from colonnade.assembly.files import (
    COMMON_FILE,
    from_file,
    from_files,
    names_of,
    read_all,
    read_common,
    sha256_of,
    write_common,
)
from colonnade.assembly.holding import POOLED, as_image, check_equal_rows, of
from colonnade.assembly.labels import heard, task_for
from colonnade.assembly.memory import from_memory
from colonnade.assembly.own_rows import OwnRows, ids_of, load_rows, no_rows, save_rows

__all__ = [
    "COMMON_FILE",
    "POOLED",
    "Assembly",
    "OwnRows",
    "as_image",
    "check_equal_rows",
    "from_catalogue",
    "from_file",
    "from_files",
    "from_memory",
    "heard",
    "ids_of",
    "load_rows",
    "names_of",
    "no_rows",
    "of",
    "read_all",
    "read_common",
    "save_rows",
    "schedule_of",
    "sha256_of",
    "task_for",
    "write_common",
]
