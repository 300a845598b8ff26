"""The messages of Hetero-NN's interactive layer, in the clear or encrypted, and checks of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from colonnade.errors import Untrusted
from colonnade.wire import Kind

PUBLIC_KEY = Kind(
    "public_key",
    ("bytes",),
    reveals="nothing: a fresh public key",
    dtype="uint8",
    randomised=True,
    host=True,
    about="nothing",
)


@dataclass(frozen=True)
class Kinds:
    """The messages of a batch, in their order; numbers are steps of Hetero-NN."""

    embedding: Kind  # 1. passive → active
    product: Kind  # 2. active → passive
    output: Kind  # 3. passive → active
    gradient: Kind  # 5. active → passive
    masked_gradient: Kind  # 6. passive → active, with
    noise: Kind  # 6.
    error: Kind  # 7. active → passive

    @property
    def from_active(self) -> list[Kind]:
        return [self.product, self.gradient, self.error]

    @property
    def from_passive(self) -> list[Kind]:
        return [self.embedding, self.output, self.masked_gradient, self.noise]


OUTPUT = "the sender's features, through W_m α_m"
MASKED = "δᵀα_m within a mask of the size ε_m/η"
CLEAR = Kinds(  # encryption = "none"; the ledger does not call protected what is not
    embedding=Kind(
        "embedding",
        ("batch", "dim"),
        reveals="the sender's features, through α_m: nothing is encrypted",
        dtype="float64",
    ),
    product=Kind(
        "product", ("batch", "width"), reveals="W_m α_m within masks of size 1", dtype="float64"
    ),
    output=Kind("output", ("batch", "width", "words"), reveals=OUTPUT, dtype="float64"),
    gradient=Kind(
        "gradient",
        None,  # {"product": (dim, width), "rate": η}
        reveals="δ, through δᵀα_m within masks of size 1: nothing is encrypted",
        dtype="float64",
        about="batch",
    ),
    masked_gradient=Kind(
        "masked_gradient",
        ("dim", "width", "words"),
        reveals=MASKED,
        dtype="float64",
        about="batch",
    ),
    noise=Kind(
        "noise",
        ("dim", "width"),
        reveals="the mask of W_m, and so W_m itself: nothing is encrypted",
        dtype="float64",
        about="batch",
    ),
    error=Kind(
        "error",
        ("dim", "batch"),
        reveals="the labels, through dL/dα_m",
        dtype="float64",
    ),
)
SEALED = Kind(
    "encrypted_embedding",
    ("bytes",),
    reveals="the number of rows; without the sender's key, no more",
    dtype="uint8",
    randomised=True,
    host=True,
    about="batch",
    varies=True,
)
ENCRYPTED = Kinds(
    embedding=SEALED,
    product=replace(SEALED, name="encrypted_product", reveals="W_m α_m within the mask ε_B"),
    output=replace(
        SEALED,
        name="opened_output",
        shape=("batch", "width", "words"),
        reveals=OUTPUT,
        dtype="any",
    ),
    gradient=replace(
        SEALED,
        name="encrypted_gradient",
        shape=None,  # {"product": bytes of (dim, width), "rate": η}
        reveals="δᵀα_m within the mask ε_B",
    ),
    masked_gradient=replace(
        SEALED,
        name="opened_gradient",
        shape=("dim", "width", "words"),
        reveals=MASKED,
        dtype="any",
    ),
    noise=replace(
        SEALED, name="encrypted_noise", reveals="without the sender's key, nothing: the mask of W_m"
    ),
    error=replace(
        SEALED, name="encrypted_error", reveals="the labels, to the receiver, through dL/dα_m"
    ),
)
KINDS = (PUBLIC_KEY, *vars(CLEAR).values(), *vars(ENCRYPTED).values())


def gradient_of(message: object, sender: str, highest: float) -> tuple[Tensor, float]:
    """5. The product and η. A rate above the agreed one would shrink the mask ε_m/η: refused."""
    known = isinstance(message, Mapping) and message.keys() == {"product", "rate"}
    product, rate = (message["product"], message["rate"]) if known else (None, None)  # type: ignore[index]
    if not isinstance(product, Tensor) or not isinstance(rate, float):
        raise Untrusted(f"'{sender}' sent a malformed gradient: a product with a rate is due")
    if not 0 < rate <= highest * (1 + 1e-9):
        raise Untrusted(f"'{sender}' sent the rate {rate:g}; agreed on is at most {highest:g}")
    return product, rate


def check_shape(opened: Tensor, shape: tuple[int, int], sender: str, kind: Kind) -> None:
    if opened.shape[:2] != shape:
        raise Untrusted(
            f"'{sender}' sent '{kind.name}' of shape {tuple(opened.shape[:2])}; {shape} is due"
        )
