"""What a party does to its own columns before a model sees them, fitted on its training rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from colonnade.data.types import Column
from colonnade.errors import DataError

_CHUNK = 1 << 16  # rows of a table converted to float64 at a time
_PIXELS = 1 << 24  # the same for images, in pixels
_FLAT = 1e-3  # a channel that varies less than this (of 1) is left unscaled


@dataclass(frozen=True, eq=False)
class Preparation:
    """Scaling and encoding of one party's features, known to that party alone.

    Tables: a numeric column becomes (x - mean) / std, a categorical one as many columns of 0 and 1
    as it has categories; the code -1, an unknown category, becomes zeros. A missing number, where
    its column allows it, becomes the mean, whether or not training rows lacked one too.
    Images stay uint8 until they are on the device, where `x.float() * scale + shift` normalises
    them.
    """

    columns: tuple[Column, ...]  # empty for images
    mean: Tensor  # float64, per column or channel; of x / unit
    std: Tensor  # float64; 1 where there is nothing to scale
    unit: float = 1.0  # 255 for uint8 images
    fill: Tensor | None = None  # float64, per column: for missing numbers; None: the mean

    @staticmethod
    def fit(
        x: Tensor, columns: tuple[Column, ...] = (), *, standardise: bool = True
    ) -> Preparation:
        """Learn from training rows: a table (n, d) or images (n, c, h, w)."""
        _check_shape(x, columns)
        if not len(x):
            raise DataError("there are no training rows. Give at least one.")
        unit = 255.0 if x.dtype == torch.uint8 and x.dim() == 4 else 1.0
        check_features(x, columns)
        if not standardise:
            width = x.shape[1]
            gaps = any(column.missing for column in columns)
            fill = _table_moments(x, columns)[0] if gaps else None
            return Preparation(columns, _full(width, 0.0), _full(width, 1.0), unit, fill)
        if x.dim() == 2:
            mean, std = _table_moments(x, columns)
        elif x.dtype == torch.uint8:
            mean, std = _byte_moments(x)
        else:
            mean, std = _float_image_moments(x)
        return Preparation(columns, mean, std, unit)

    @property
    def width(self) -> int:
        """The number of columns that `apply` returns; for images, of channels."""
        if not self.columns:
            return len(self.mean)
        return sum(len(column.categories) or 1 for column in self.columns)

    @property
    def fixed(self) -> bool:
        """Whether it would be the same for any other rows: nothing of it was learnt from these."""
        moved = bool(self.mean.any()) or bool((self.std != 1).any()) or self.fill is not None
        return not moved and not any(column.categories for column in self.columns)

    @property
    def scale(self) -> Tensor:  # float32 (c, 1, 1)
        return (1 / (self.std * self.unit)).float()[:, None, None]

    @property
    def shift(self) -> Tensor:  # float32 (c, 1, 1)
        return (-self.mean / self.std).float()[:, None, None]

    def apply(self, x: Tensor) -> Tensor:
        """Tables: float32 (n, width). Images: as they are."""
        _check_shape(x, self.columns)
        if x.shape[1] != len(self.mean):
            raise DataError(
                f"prepared for {len(self.mean)} channels, given {x.shape[1]}. Use the same "
                "channels as in training."
            )
        if not self.columns:
            if (x.dtype == torch.uint8) != (self.unit == 255.0):
                given = str(x.dtype).removeprefix("torch.")
                raise DataError(f"images are {given}; in training, {self._kind()}. Use the same.")
            check_features(x, self.columns)
            return x
        check_features(x, self.columns)
        out = torch.zeros(len(x), self.width)
        numeric, places = self._numeric_places()
        fill = (self.mean if self.fill is None else self.fill)[numeric]
        for start in range(0, len(x), _CHUNK):
            rows = slice(start, start + _CHUNK)
            values = x[rows, numeric].double()
            values = torch.where(values.isnan(), fill, values)
            out[rows, places] = ((values - self.mean[numeric]) / self.std[numeric]).float()
        for source, place in self._encoded():
            codes = x[:, source].long()
            known = torch.nonzero(codes >= 0).flatten()
            out[known, place + codes[known]] = 1.0
        return out

    def _kind(self) -> str:
        """The form that images had in training."""
        if self.unit == 255.0:
            return "uint8 from 0 to 255"
        means = ", ".join(f"{mean:.3g}" for mean in self.mean.tolist())
        return f"float with a mean of {means}" if self.mean.any() else "float"

    def to_float(self, x: Tensor) -> Tensor:
        """Turn rows from `apply` into a model's input: float32, images normalised."""
        if x.dim() != 4:
            return x.float()
        scale, shift = self.scale.to(x.device), self.shift.to(x.device)
        return x.to(torch.float32, copy=True).mul_(scale).add_(shift)

    def to_pixels(self, x: Tensor) -> Tensor:
        """Turn a model's input back into uint8 images; only for images that were uint8."""
        scale, shift = self.scale.to(x.device), self.shift.to(x.device)
        return ((x - shift) / scale).round().clamp(0, 255).to(torch.uint8)

    def _places(self) -> list[int]:
        """Where each column's values start in the result."""
        places, at = [], 0
        for column in self.columns:
            places.append(at)
            at += len(column.categories) or 1
        return places

    def _numeric_places(self) -> tuple[Tensor, Tensor]:
        numeric = _numeric(self.columns)
        return numeric, torch.tensor(self._places(), dtype=torch.long)[numeric]

    def _encoded(self) -> list[tuple[int, int]]:
        both = zip(self.columns, self._places(), strict=True)
        return [(i, place) for i, (column, place) in enumerate(both) if column.categories]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save with safetensors; the caller saves the columns."""
        kept = {
            "mean": self.mean,
            "std": self.std,
            "unit": torch.tensor(self.unit, dtype=torch.float64),
        }
        return kept if self.fill is None else kept | {"fill": self.fill}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor], columns: tuple[Column, ...]) -> Preparation:
        if lost := {"mean", "std", "unit"} - tensors.keys():
            raise DataError(f"a saved preparation lacks {', '.join(sorted(lost))}. Prepare again.")
        mean, std = tensors["mean"].double(), tensors["std"].double()
        if columns and len(columns) != len(mean):
            raise DataError(
                f"a preparation of {len(mean)} columns does not fit {len(columns)}. Prepare again."
            )
        fill = tensors["fill"].double() if "fill" in tensors else None
        return Preparation(columns, mean, std, float(tensors["unit"]), fill)


def _full(width: int, value: float) -> Tensor:
    return torch.full((width,), value, dtype=torch.float64)


def _numeric(columns: tuple[Column, ...]) -> Tensor:
    chosen = [place for place, column in enumerate(columns) if not column.categories]
    return torch.tensor(chosen, dtype=torch.long)


def _check_shape(x: Tensor, columns: tuple[Column, ...]) -> None:
    if x.dim() == 2 and len(columns) == x.shape[1]:
        return
    if x.dim() == 4 and not columns:
        return
    if x.dim() == 2 and not columns:
        raise DataError(
            f"features of shape {tuple(x.shape)}, a table, where images are due: (rows, channels, "
            "height, width)"
        )
    raise DataError(
        f"features of shape {tuple(x.shape)} do not go with {len(columns)} columns. "
        "Give a table (rows, columns) and one Column each, or images (rows, channels, height, "
        "width) and no Column."
    )


def check_features(x: Tensor, columns: tuple[Column, ...]) -> None:
    """Refuse rows that no model can take, and say which."""
    if x.dim() == 2:
        _check_table(x, columns)
    elif x.is_floating_point():
        right = torch.isfinite(x).flatten(1).all(1)
        if not bool(right.all()):
            row = int(torch.nonzero(~right)[0])
            raise DataError(
                f"the image in row {row} has NaN or infinite pixels. Fill or remove it."
            )


def _check_table(x: Tensor, columns: tuple[Column, ...]) -> None:
    """Refuse infinity, NaN where numbers may not be missing, and codes that name no category."""
    for place, column in enumerate(columns):
        values = x[:, place]
        if column.categories:
            right = (values >= -1) & (values < len(column.categories)) & (values == values.floor())
            wanted = f"a code of -1..{len(column.categories) - 1}. Encode its categories as codes"
        else:
            right = torch.isfinite(values) | (values.isnan() & column.missing)
            wanted = (
                "a finite number. Fill or remove such rows; in a DataFrame or a file a number may "
                "be missing, and becomes the column's mean"
            )
        if not bool(right.all()):
            row = int(torch.nonzero(~right)[0])
            raise DataError(
                f"column '{column.name}' has {values[row].item():g} in row {row}, not {wanted}."
            )


def _table_moments(x: Tensor, columns: tuple[Column, ...]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation in float64, in two passes by chunks; missing numbers are skipped.

    A constant column gets std 1 and so becomes 0.
    """
    chunks = [slice(start, start + _CHUNK) for start in range(0, len(x), _CHUNK)]
    total, count = _full(x.shape[1], 0.0), _full(x.shape[1], 0.0)
    for rows in chunks:
        values = x[rows].double()
        present = ~values.isnan()
        total += torch.where(present, values, 0.0).sum(0)
        count += present.sum(0)
    if bool((count == 0).any()):
        name = columns[int((count == 0).nonzero()[0])].name
        raise DataError(f"column '{name}' has no number in any training row. Omit it.")
    mean = total / count
    squares = _full(x.shape[1], 0.0)
    for rows in chunks:
        values = x[rows].double()
        squares += torch.where(values.isnan(), 0.0, values - mean).square().sum(0)
    std = (squares / count).sqrt()
    std[std == 0] = 1.0
    categorical = torch.tensor([bool(column.categories) for column in columns], dtype=torch.bool)
    mean[categorical], std[categorical] = 0.0, 1.0
    return mean, std


def _byte_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Per channel, of x / 255, from counts of the 256 values: exact, and without a float copy."""
    mean, std = _full(x.shape[1], 0.0), _full(x.shape[1], 1.0)
    rows = max(1, _PIXELS // max(1, x.shape[2] * x.shape[3]))
    levels = torch.arange(256)
    for channel in range(x.shape[1]):
        counts = torch.zeros(256, dtype=torch.int64)
        for start in range(0, len(x), rows):
            values = x[start : start + rows, channel].reshape(-1)
            counts += torch.bincount(values, minlength=256)
        n, first = int(counts.sum()), int((counts * levels).sum())
        second = int((counts * levels * levels).sum())
        mean[channel] = first / (n * 255)
        # Python's integers do not round before this one division.
        deviation = ((n * second - first * first) / (n * n)) ** 0.5 / 255
        std[channel] = deviation if deviation >= _FLAT else 1.0
    return mean, std


def _float_image_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = max(1, _PIXELS // max(1, x.shape[1] * x.shape[2] * x.shape[3]))
    chunks = [slice(start, start + rows) for start in range(0, len(x), rows)]
    pixels = len(x) * x.shape[2] * x.shape[3]
    total = sum((x[c].double().sum((0, 2, 3)) for c in chunks), _full(x.shape[1], 0.0))
    mean = total / pixels
    centre = mean[:, None, None]
    squares = sum(
        ((x[c].double() - centre).square().sum((0, 2, 3)) for c in chunks), _full(x.shape[1], 0.0)
    )
    std = (squares / pixels).sqrt()
    return mean, torch.where(std < _FLAT, 1.0, std)
