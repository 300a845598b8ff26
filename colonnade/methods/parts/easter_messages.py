"""The messages of EASTER; see privacy/masking.py for those of masked embeddings."""

from __future__ import annotations

from colonnade.privacy.masking import MASKED, WEAKLY_MASKED
from colonnade.wire import Kind

EMBEDDING = Kind(
    "embedding",
    ("batch", "dim"),
    reveals="the sender's features, through h_k",
    carries="features",
)
GLOBAL = Kind(
    "global_embedding",
    ("batch", "dim"),
    reveals="what all embeddings are together",
    carries="sums",
)
PREDICTION = Kind(
    "prediction",
    ("batch", "classes"),
    reveals="what the sender's p_k makes of E",
    carries="released",
)
GRADIENT = Kind(
    "gradient",
    ("batch", "classes"),
    reveals="every label: where dL_k/dR_k is negative, or by its size",
    carries="labels",
)
HEAD_GRADIENT = Kind(
    "head_gradient",
    ("batch", "dim"),
    reveals="the sender's p_k, through dL_k/dE",
    carries="released",
)
JOINT_GRADIENT = Kind(
    "joint_gradient",
    ("batch", "dim"),
    reveals="all heads, through Σ_k dL_k/dE",
    carries="labels",
)
MEAN = Kind(
    "mean_embedding",
    ("dim",),
    reveals="the sender's mean embedding over its training",
    carries="features",
)
KINDS = (
    EMBEDDING,
    GLOBAL,
    PREDICTION,
    GRADIENT,
    HEAD_GRADIENT,
    JOINT_GRADIENT,
    MEAN,
    MASKED,
    WEAKLY_MASKED,
)


def kind_of(mask: str, passives: int) -> Kind:
    """Embeddings without a strong mask have Kinds of their own, which say so in the ledger."""
    if mask == "none":
        return EMBEDDING
    return MASKED if mask == "prg" and passives > 1 else WEAKLY_MASKED
