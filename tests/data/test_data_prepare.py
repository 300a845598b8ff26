"""What a party does to its own columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from colonnade.data import Column, Preparation, check_labels
from colonnade.errors import DataError

NUMBER, COLOUR = Column("age"), Column("colour", ("blue", "green", "red"))


def test_table_by_hand() -> None:
    x = torch.tensor([[1.0, 0.0, 5.0], [3.0, 2.0, 5.0]])
    columns = (NUMBER, COLOUR, Column("constant"))
    fitted = Preparation.fit(x, columns)
    assert fitted.width == 5
    assert fitted.apply(x).tolist() == [[-1, 1, 0, 0, 0], [1, 0, 0, 1, 0]]
    unseen = fitted.apply(torch.tensor([[2.0, -1.0, 9.0]]))
    assert unseen.tolist() == [[0, 0, 0, 0, 4]]
    assert fitted.apply(x).dtype == torch.float32
    plain = Preparation.fit(x, columns, standardise=False)
    assert plain.apply(x).tolist() == [[1, 1, 0, 0, 5], [3, 0, 0, 1, 5]]


@st.composite
def tables(draw: st.DrawFn) -> tuple[torch.Tensor, tuple[Column, ...]]:
    rows = draw(st.integers(1, 30))
    columns, values = [], []
    for place in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            names = tuple("abcdef"[: draw(st.integers(1, 6))])
            columns.append(Column(f"c{place}", names))
            element = st.integers(-1, len(names) - 1).map(float)
        else:
            columns.append(Column(f"c{place}"))
            element = st.floats(-(2.0**100), 2.0**100, width=32)
        values.append(draw(st.lists(element, min_size=rows, max_size=rows)))
    return torch.tensor(values).T.contiguous(), tuple(columns)


@given(tables())
def test_prepared_columns_have_mean_0_and_deviation_1(
    table: tuple[torch.Tensor, tuple[Column, ...]],
) -> None:
    x, columns = table
    fitted = Preparation.fit(x, columns)
    out = fitted.apply(x)
    assert out.shape == (len(x), fitted.width)
    assert bool(torch.isfinite(out).all())
    at = 0
    for place, column in enumerate(columns):
        width = len(column.categories) or 1
        part = out[:, at : at + width].double()
        at += width
        if column.categories:
            codes = x[:, place].long()
            assert torch.equal(part.sum(1), (codes >= 0).double())
            assert torch.equal(part.argmax(1)[codes >= 0], codes[codes >= 0])
        elif bool((x[:, place] == x[0, place]).all()):
            assert torch.equal(part, torch.zeros_like(part))
        else:
            assert abs(float(part.mean())) < 1e-5
            assert float(part.std(correction=0)) == pytest.approx(1, abs=1e-5)
    # Row by row the same as all at once: nothing of the other rows takes part.
    assert torch.equal(torch.cat([fitted.apply(row[None]) for row in x]), out)
    again = Preparation.from_tensors(load(save(fitted.tensors())), columns)
    assert torch.equal(again.apply(x), out)


@given(st.integers(1, 3), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_image_statistics_are_exact(channels: int, size: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (7, channels, size, size), np.uint8)
    x = torch.from_numpy(pixels)
    fitted = Preparation.fit(x)
    assert fitted.apply(x) is x
    assert fitted.width == channels
    unit = pixels.astype(np.float64) / 255
    assert fitted.mean.numpy() == pytest.approx(unit.mean((0, 2, 3)), abs=1e-12)
    assert fitted.std.numpy() == pytest.approx(unit.std((0, 2, 3)), abs=1e-12)
    normal = x.float() * fitted.scale + fitted.shift
    assert torch.equal(fitted.to_float(x), normal)
    assert normal.double().mean((0, 2, 3)).abs().max() < 1e-5
    again = Preparation.from_tensors(load(save(fitted.tensors())), ())
    assert torch.equal(again.scale, fitted.scale)
    assert torch.equal(again.shift, fitted.shift)


def test_flat_images_are_not_blown_up() -> None:
    x = torch.full((4, 2, 3, 3), 100, dtype=torch.uint8)
    fitted = Preparation.fit(x)
    assert fitted.std.tolist() == [1, 1]
    assert fitted.to_float(x).abs().max() < 1e-6


def test_images_without_standardisation_are_fractions() -> None:
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(3, 1, 1, 1)
    out = Preparation.fit(x, standardise=False).to_float(x)
    assert out.flatten().tolist() == pytest.approx([0, 0.2, 1])


def test_float_images() -> None:
    x = torch.randn(50, 2, 4, 4, generator=torch.Generator().manual_seed(0)) * 7 + 3
    fitted = Preparation.fit(x)
    out = fitted.to_float(x)
    assert float(out.mean()) == pytest.approx(0, abs=1e-5)
    assert out.std((0, 2, 3), correction=0).tolist() == pytest.approx([1, 1], abs=1e-5)
    assert torch.equal(Preparation.fit(x, standardise=False).to_float(x), x)
    known = ", ".join(f"{mean:.3g}" for mean in x.mean((0, 2, 3)).tolist())
    with pytest.raises(DataError, match=f"are uint8; in training, float with a mean of {known}"):
        fitted.apply(x.byte())
    with pytest.raises(DataError, match="a table, where images are due"):
        fitted.apply(x.flatten(1))
    with pytest.raises(DataError, match="are float32; in training, uint8 from 0 to 255"):
        Preparation.fit(x.byte()).apply(x)
    x[3, 1, 0, 0] = float("nan")
    with pytest.raises(DataError, match="NaN"):
        Preparation.fit(x)


def test_many_rows_go_through_in_chunks() -> None:
    x = torch.arange(200_000, dtype=torch.float32)[:, None]
    out = Preparation.fit(x, (NUMBER,)).apply(x).double()
    assert float(out.mean()) == pytest.approx(0, abs=1e-6)
    assert float(out.std(correction=0)) == pytest.approx(1, abs=1e-6)


def test_party_with_labels_only() -> None:
    x = torch.empty(5, 0)
    fitted = Preparation.fit(x, ())
    assert fitted.apply(x).shape == (5, 0)
    assert fitted.width == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none(value: float) -> None:
    x = torch.zeros(5, 2)
    x[3, 0] = value
    with pytest.raises(DataError, match=r"column 'age' has .* in row 3.*Fill or remove"):
        Preparation.fit(x, (NUMBER, COLOUR))
    fitted = Preparation.fit(torch.zeros(5, 2), (NUMBER, COLOUR))
    with pytest.raises(DataError, match="row 3"):
        fitted.apply(x)


@pytest.mark.parametrize("code", [3.0, -2.0, 0.5, float("nan")])
def test_codes_that_name_nothing(code: float) -> None:
    with pytest.raises(DataError, match=r"column 'colour' has .* in row 0, not a code of -1\.\.2"):
        Preparation.fit(torch.tensor([[code]]), (COLOUR,))


@pytest.mark.parametrize(
    ("x", "columns"),
    [
        (torch.zeros(4), (NUMBER,)),
        (torch.zeros(4, 2), (NUMBER,)),
        (torch.zeros(4, 1, 2, 2), (NUMBER,)),
        (torch.zeros(4, 2, 2), ()),
    ],
)
def test_shapes_that_do_not_fit(x: torch.Tensor, columns: tuple[Column, ...]) -> None:
    with pytest.raises(DataError, match="do not go with"):
        Preparation.fit(x, columns)


def test_refusals() -> None:
    with pytest.raises(DataError, match="no training rows"):
        Preparation.fit(torch.zeros(0, 1), (NUMBER,))
    fitted = Preparation.fit(torch.zeros(2, 3, 4, 4, dtype=torch.uint8))
    with pytest.raises(DataError, match="prepared for 3 channels, given 1"):
        fitted.apply(torch.zeros(2, 1, 4, 4, dtype=torch.uint8))
    with pytest.raises(DataError, match="lacks std, unit"):
        Preparation.from_tensors({"mean": torch.zeros(1)}, (NUMBER,))
    with pytest.raises(DataError, match="does not fit"):
        Preparation.from_tensors(fitted.tensors(), (NUMBER,))


def test_labels() -> None:
    check_labels(torch.tensor([0, 1, 1]), ("no", "yes"))
    with pytest.raises(DataError, match=r"the label in row 1 is 2.*0\.\.1"):
        check_labels(torch.tensor([0, 2, 1]), ("no", "yes"))
    with pytest.raises(DataError, match="row 0 is -1"):
        check_labels(torch.tensor([-1, 1]), ("no", "yes"))
    with pytest.raises(DataError, match="no row has the class 'no'"):
        check_labels(torch.tensor([1, 1]), ("no", "yes"))
    with pytest.raises(DataError, match=r"'c10' and 89 more, of 100\."):
        check_labels(torch.tensor([0]), tuple(f"c{code}" for code in range(100)))
    with pytest.raises(DataError, match="Give int64"):
        check_labels(torch.tensor([0.0, 1.0]), ("no", "yes"))
