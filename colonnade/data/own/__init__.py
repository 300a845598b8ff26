"""Reads a party's own file (CSV or Parquet), infers its types and names mistakes by line or column.

    id,age,town,member,label     the first line names the columns; OwnFile says which is what
    c1,34,Ulm,true,no

1. A first pass reads ids, labels and every number, piece by piece, into the float32 table.
2. A second pass, over the columns with text alone, turns text into truth values or categories, or
   reports why it is neither. A column's type depends on all rows, never on one piece.

Images come as .npz. The settings are in settings.py, the forms in csv.py, parquet.py and images.py.
"""

from colonnade.data.own.images import ID, LABEL, read_images
from colonnade.data.own.reader import read
from colonnade.data.own.settings import OwnFile, described
from colonnade.data.own.table import Own

__all__ = ["ID", "LABEL", "Own", "OwnFile", "described", "read", "read_images"]
