"""Transactions: committed records are read, aborted ones are not, and only readers of uncommitted data see both."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.clients.api import Rec
from tests.clients.raw import stored_batches
from tests.clients.registry import ABILITIES, Opener, clients, pairs

pytestmark = pytest.mark.timeout(600)  # the first use of a driver builds it

ADD_PARTITIONS_TO_TXN, END_TXN = 24, 26


@pytest.fixture
def transactions_offered(needs_api: Callable[..., None]) -> None:
    needs_api("transactions", ADD_PARTITIONS_TO_TXN, END_TXN)


TRANSACTIONAL = [name for name, abilities in ABILITIES.items() if abilities.transactions]


@pytest.mark.usefixtures("transactions_offered")
@pytest.mark.parametrize(("writer", "reader"), pairs(*TRANSACTIONAL))
def test_only_committed_transactions_are_read(
    writer: str, reader: str, open_client: Opener, make_topic: Callable[..., str], fresh_name: Callable[[str], str]
) -> None:
    topic = make_topic(f"transactions-{writer}")
    rounds = [
        (True, [Rec(b"a"), Rec(b"b")]),
        (False, [Rec(b"never"), Rec(b"seen")]),
        (True, [Rec(b"c")]),
        (False, [Rec(b"nor this")]),
        (True, [Rec(b"d")]),
    ]
    open_client(writer).transact(topic, fresh_name("tx"), rounds)
    client = open_client(reader)
    assert [record.value for record in client.consume_committed(topic, 4)] == [b"a", b"b", b"c", b"d"]
    assert [record.value for record in client.consume(topic, {0: 7})] == [
        b"a",
        b"b",
        b"never",
        b"seen",
        b"c",
        b"nor this",
        b"d",
    ]


@pytest.mark.usefixtures("transactions_offered")
@pytest.mark.parametrize("writer", clients(lambda abilities: abilities.transactions))
def test_every_end_is_marked_in_the_log(
    writer: str, open_client: Opener, make_topic: Callable[..., str], fresh_name: Callable[[str], str], bootstrap: str
) -> None:
    topic = make_topic(f"markers-{writer}")
    open_client(writer).transact(topic, fresh_name("tx"), [(True, [Rec(b"a")]), (False, [Rec(b"b")])])
    batches = stored_batches(bootstrap, topic, 0, 0, 4)
    assert [(batch.base_offset, batch.transactional, batch.control) for batch in batches] == [
        (0, True, False),
        (1, True, True),
        (2, True, False),
        (3, True, True),
    ]
    assert len({batch.producer_id for batch in batches}) == 1
