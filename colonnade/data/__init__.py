"""Where rows come from: data sets by name, the user's own arrays, and their preparation."""

from colonnade.data.arrays import from_arrays
from colonnade.data.augment import Moves
from colonnade.data.labels import Asked, Called, check_labels, class_of, label_codes, labels_from
from colonnade.data.prepare import Preparation, check_features
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
from colonnade.data.split import divide, strata, stratified
from colonnade.data.types import (
    IN_MEMORY,
    OWN_FILES,
    OWN_PARTITION,
    Column,
    Dataset,
    Split,
    numbered,
)
from colonnade.data.weights import check_weights, weights_from

__all__ = [
    "IN_MEMORY",
    "OWN_FILES",
    "OWN_PARTITION",
    "SOURCES",
    "Asked",
    "Available",
    "Called",
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
    "check_weights",
    "class_of",
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
    "strata",
    "stratified",
    "weights_from",
]
