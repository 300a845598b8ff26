"""Divides a data set's columns, images or rows among parties, and joins the parts again."""

from colonnade.partition.columns import columns, cut_columns, join_columns, named_columns
from colonnade.partition.images import Rectangle, View, cut, paste, rectangles, strips, tiles
from colonnade.partition.mosaic import Mosaic, margin
from colonnade.partition.plan import Part, Partition
from colonnade.partition.rows import dirichlet, iid, overlap

__all__ = [
    "Mosaic",
    "Part",
    "Partition",
    "Rectangle",
    "View",
    "columns",
    "cut",
    "cut_columns",
    "dirichlet",
    "iid",
    "join_columns",
    "margin",
    "named_columns",
    "overlap",
    "paste",
    "rectangles",
    "strips",
    "tiles",
]
