"""The row's columns: which there are, in which order, and how they are asked for."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_pipeline.core.rows import BASIC, METADATA, TYPES, Columns, constant, empty


def test_columns_come_as_asked_for() -> None:
    assert Columns().names == BASIC
    assert Columns.select(headers=True, metadata=True).names == (*BASIC, "headers", *METADATA)
    schema = Columns(("offset", "value")).schema
    assert schema == pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    assert all(field.nullable for field in Columns(tuple(TYPES)).schema)


@pytest.mark.parametrize(("names", "sentence"), [(("key", "crc"), "no column 'crc'"), (("key", "key"), "twice")])
def test_columns_that_cannot_be(names: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Columns(names)


def test_no_rows_have_the_columns_too() -> None:
    columns = Columns(tuple(TYPES))
    assert empty(columns).schema == columns.schema
    assert empty(columns).num_rows == 0


@pytest.mark.parametrize("count", [0, 1, 1024, 1025, 40_000])
def test_a_column_that_says_the_same_in_each_row(count: int) -> None:
    assert constant("flights", pa.string(), count).equals(pa.array(["flights"] * count, pa.string()))
    assert constant(7, pa.int32(), count).equals(pa.array([7] * count, pa.int32()))
    assert constant(None, pa.string(), count).null_count == count
