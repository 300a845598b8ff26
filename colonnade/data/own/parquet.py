"""Parquet, read by Arrow in pieces."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.own import table
from colonnade.data.own.phrases import leave_out, setting
from colonnade.data.own.table import Cells, unreadable
from colonnade.data.values import written
from colonnade.errors import DataError
from colonnade.version import installing


@dataclass(frozen=True)
class Parquet:
    path: Path
    names: list[str]
    file: Any  # pyarrow.parquet.ParquetFile

    @staticmethod
    def open(path: Path) -> Parquet:
        try:
            parquet = import_module("pyarrow.parquet")
        except ImportError:
            raise DataError(
                f"{path}: Parquet needs pyarrow, which is not installed: {installing('data')}"
            ) from None
        with unreadable(path):
            file = parquet.ParquetFile(path)
        return Parquet(path, list(file.schema_arrow.names), file)

    def pieces(self, wanted: Sequence[str], texts: Collection[str]) -> Iterator[list[Cells]]:
        most = max(1, table.CHUNK // max(1, len(wanted)))
        with unreadable(self.path):
            for batch in self.file.iter_batches(batch_size=most, columns=list(wanted)):
                yield [self._cells(name, batch.column(name), name in texts) for name in wanted]

    def place(self, row: int) -> str:
        return f"row {row + 1}"

    def check_rows(self) -> None:
        """All rows of the format have a cell for every column."""

    def decimals(self, name: str) -> bool:
        """Whether a column holds decimals."""
        kind = self.file.schema_arrow.field(name).type
        return bool(import_module("pyarrow").types.is_floating(kind))

    def _cells(self, name: str, column: Any, text: bool) -> Cells:
        arrow = import_module("pyarrow")
        types = arrow.types
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        kind = column.type
        if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
            return ["" if cell is None else cell for cell in column.to_pylist()]
        if types.is_boolean(kind):
            return [written(cell) for cell in column.to_pylist()]
        if types.is_temporal(kind):
            raise DataError(
                f"{self.path}, column '{name}': these are dates or times ({kind}). Turn them into "
                f"a number, such as days since a day, or omit them: {setting(name)}"
            )
        number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
        if not number and not types.is_null(kind):
            raise DataError(
                f"{self.path}, column '{name}': values of type {kind} are neither numbers nor "
                f"text. {leave_out(name)}"
            )
        if text:
            return [written(cell) for cell in column.to_pylist()]
        numbers: NDArray[np.float64] = column.cast(arrow.float64(), safe=False).to_numpy(
            zero_copy_only=False
        )
        return numbers
