"""Schemas in a browser: records decoded in the list and in a dialog, searched, and written by a schema."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.bridges.console.chromium import complaints
from tests.bridges.console.page import Page
from tests.bridges.node.test_node import append
from tests.schema_registry import FakeRegistry, registry

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}],
}
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with registry() as one:
        yield one


@pytest.fixture
def set_to(fake: FakeRegistry) -> dict[str, str]:
    return {"schemas__registry": fake.url}


async def test_records_are_shown_searched_and_written_by_their_schemas(page: Page, fake: FakeRegistry) -> None:
    number = fake.register("orders-value", ORDER)
    await page.node.catalog.create_topic("orders", 1)
    large = 1234567890123456789
    for identity, note in ((large, HOSTILE), (7, "seven")):
        zigzag, coded = 2 * identity, bytearray()
        while zigzag > 0x7F:
            coded.append(zigzag & 0x7F | 0x80)
            zigzag >>= 7
        data = b"\0" + number.to_bytes(4) + coded + bytes([zigzag, 2 * len(note)]) + note.encode()
        await append(page.node, "orders", 0, 1_000_000, data)
    await append(page.node, "orders", 0, 1_000_000, b"\0\0\0\0\x63x")

    def act() -> None:
        page.open("topic/orders/records")
        page.shows("3 records", "AVRO", f'{{"id":{large},"note":"{HOSTILE}"}}')
        page.shows("not decoded: the schema registry has no /schemas/ids/99")
        page.press("0:0")
        page.shows("value, AVRO schema 1", f'"id": {large}', "hex")
        page.press("Close")
        page.field("JSON of the value").send_keys("id = 7")
        page.press("Show")
        page.shows("1 found", '"note":"seven"')
        page.press("Produce…")
        page.field("Value").send_keys('{"id": "x", "note": ""}')
        page.field("Schema of the value").send_keys("orders-value")
        page.press("Produce")
        page.shows("value: it does not fit schema orders-value", "expected long")
        page.field("Value").clear()
        page.field("Value").send_keys('{"id": 7, "note": "written"}')
        page.press("Produce")
        page.shows("stored in partition 0 at offset 3")
        page.press("Show")
        page.shows("2 found", '"note":"written"')
        assert [one for one in complaints(page.driver) if "400" not in str(one)] == []

    await asyncio.to_thread(act)
