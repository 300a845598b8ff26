"""The messages of VFedTrans beside keys; see privacy/fedsvd.py for who learns what from them."""

from __future__ import annotations

from colonnade.wire import Kind

WIDTH = Kind(
    "width", (1,), reveals="how many columns the sender has", dtype="int64", about="nothing"
)
MASKS = Kind(
    "sealed_masks",
    ("bytes",),
    reveals="to the receiver A and its own rows of B; to others how long they are",
    dtype="uint8",
    randomised=True,
    host=True,
    about="nothing",
)
SHAPE = Kind(
    "shape",
    (2,),
    reveals="shared rows, and columns of all parties",
    dtype="int64",
    about="nothing",
)
MASKED = Kind(
    "masked_matrix",
    None,  # {"values": int64 (some rows, all columns), "tag": bytes}
    reveals="the sender's A S_k B_k only within the sum over all parties",
    dtype="any",
    randomised=True,
    host=True,
)
VECTORS = Kind(
    "left_vectors",
    ("shared", "q"),
    reveals="to whoever knows A: how alike the shared rows are, in all columns together",
    dtype="float64",
    randomised=True,
    host=True,
)
