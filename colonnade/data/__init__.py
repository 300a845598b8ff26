"""Where rows come from: data sets by name, the user's own arrays, and their preparation."""

from colonnade.data.arrays import from_arrays, label_codes, labels_from
from colonnade.data.augment import Moves
from colonnade.data.prepare import Preparation, check_features, check_labels
from colonnade.data.sources.catalogue import (
    SOURCES,
    Available,
    Checked,
    available,
    check,
    fetch,
    load,
    names,
    source_named,
)
from colonnade.data.sources.files import cache_folder, search_path
from colonnade.data.sources.source import Download, File, Layout, Options, Source
from colonnade.data.split import divide, stratified
from colonnade.data.types import (
    IN_MEMORY,
    OWN_FILES,
    OWN_PARTITION,
    Column,
    Dataset,
    Split,
    numbered,
)

__all__ = [
    "IN_MEMORY",
    "OWN_FILES",
    "OWN_PARTITION",
    "SOURCES",
    "Available",
    "Checked",
    "Column",
    "Dataset",
    "Download",
    "File",
    "Layout",
    "Moves",
    "Options",
    "Preparation",
    "Source",
    "Split",
    "available",
    "cache_folder",
    "check",
    "check_features",
    "check_labels",
    "divide",
    "fetch",
    "from_arrays",
    "label_codes",
    "labels_from",
    "load",
    "names",
    "numbered",
    "search_path",
    "source_named",
    "stratified",
]
