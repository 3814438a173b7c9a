"""Conditions on the JSON of values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.console.records.conditions import matches, parse_conditions
from bridges.http.errors import RequestError

ORDER = {
    "id": 1234567890123456789,
    "state": "paid",
    "customer": {"country": "DE", "name": 'says "a and b"'},
    "items": [{"sku": "s-1", "qty": 1}, {"sku": "s-2", "qty": 3, "gift": None}],
    "total": 0.10,
    "odd name": {"a.b": True},
    "zip": "0123",
}


def found(text: str, document: object = ORDER) -> bool:
    return matches(parse_conditions(text), json.dumps(document).encode())


@pytest.mark.parametrize(
    "text",
    [
        "id = 1234567890123456789",
        "$.customer.country = DE",
        '.customer.country="DE"',
        "customer.country != FR and items[*].qty >= 2 AND total = 0.1",
        "items[1].sku = s-2",
        "items[*].gift = null",
        'customer.name ~ "a and b"',
        '["odd name"]["a.b"] = true',
        "customer",
        "state > paa",
        "zip = 0123",
        "id ~ 456",
        "total < 1",
    ],
)
def test_what_is_there_is_found(text: str) -> None:
    assert found(text)


@pytest.mark.parametrize(
    "text",
    [
        "id = 1234567890123456788",
        'id = "1234567890123456789"',
        "customer.country = FR",
        "customer.country != DE",
        "items[2].sku = s-2",
        "items[*].qty > 3",
        "missing",
        "missing != 1",
        "items.sku = s-1",
        "state > 1",
        '["odd name"]["a.b"] = 1',
        "customer = DE",
    ],
)
def test_what_is_not_there_is_not_found(text: str) -> None:
    assert not found(text)


@pytest.mark.parametrize("text", ["= 1", "a =", "a = 1 and", "a b", "[", "x" * 2_001, " and ".join(["a"] * 9), "a ! 1"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        parse_conditions(text)


@pytest.mark.parametrize("value", [None, b"", b"no json", b"\xff\xfe", b"[" * 200_000, b"1" * 5_000, b'"\\ud800"'])
def test_values_that_are_no_json_match_nothing(value: bytes | None) -> None:
    assert not matches(parse_conditions("a = 1"), value)


@given(st.text(max_size=40))
def test_any_text_is_conditions_or_refused(text: str) -> None:
    try:
        conditions = parse_conditions(text)
    except RequestError:
        return
    matches(conditions, json.dumps(ORDER).encode())
