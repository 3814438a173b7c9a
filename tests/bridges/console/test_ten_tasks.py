"""Ten tasks that people come to a console for, each by keyboard alone, with no more keys than docs/console.md says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from selenium.webdriver.common.keys import Keys

from tests.bridges.console.chromium import complaints
from tests.bridges.console.keyboard import Keyboard
from tests.bridges.console.page import Window
from tests.conftest import TEST_SETTINGS
from tests.node_process import ANY, NodeProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PATIENCE = 60
DOCUMENT = Path(__file__).parents[3] / "docs" / "console.md"
MIGRATION = {
    "id": "m",
    "kind": "migration",
    "name": "old-cluster",
    "state": "running",
    "done": 42,
    "total": 100,
    "unit": "records",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with a topic that somebody writes to, a group that lags, a hanging transaction, and a migration."""
    listen = dict.fromkeys(("kafka", "console", "pipeline"), ANY) | {"sbp-pd": "off", "sbp-range-server": "off"}
    process = NodeProcess(
        tmp_path_factory.mktemp("tasks") / "data", settings=TEST_SETTINGS | {"auth.rules": "allow"}, listen=listen
    )
    with process.lent():
        kafka: dict[str, Any] = {"bootstrap.servers": process.kafka}
        names = ["orders", "payments", "target"]
        admin = AdminClient(kafka)
        for made in admin.create_topics([NewTopic(name, 2) for name in names]).values():
            made.result(PATIENCE)
        writer = Producer(kafka | {"client.id": "checkout"})
        for number in range(60):
            writer.produce("orders", f'{{"number": {number}}}', f"customer-{number}")
        assert writer.flush(PATIENCE) == 0
        with closing(Consumer(kafka | {"group.id": "billing"})) as reader:
            reader.commit(offsets=[TopicPartition("orders", number, 1) for number in (0, 1)], asynchronous=False)
        hanging = Producer(kafka | {"transactional.id": "settlement"})
        hanging.init_transactions(PATIENCE)
        hanging.begin_transaction()
        hanging.produce("payments", b"half of it")
        assert hanging.flush(PATIENCE) == 0
        report = Request(f"http://{process.addresses['pipeline']}/v1/jobs", json.dumps(MIGRATION).encode())
        urlopen(report, timeout=PATIENCE).close()
        yield process


@pytest.fixture
def keys(chromium: Any, node: NodeProcess) -> Iterator[Keyboard]:
    page = Window(chromium, f"{node.console}/")
    page.open("")
    page.shows("What is wrong now", "version")
    yield Keyboard(page)
    assert complaints(chromium) == []


def allowed(task: str) -> int:
    """Return how many keys the document says that a task takes."""
    (row,) = [line for line in DOCUMENT.read_text().splitlines() if line.startswith(f"| {task} |")]
    return int(row.split("|")[3])


def open_topic(keys: Keyboard, name: str, part: str) -> None:
    keys.press("g", "t")
    keys.page.shows(name)
    keys.press("/", name, Keys.ENTER)
    keys.page.until(lambda: f"#/topic/{name}" in keys.page.driver.current_url)
    keys.press(part)


def open_group(keys: Keyboard, name: str) -> None:
    keys.press("g", "g")
    keys.page.shows(name)
    keys.press("/", name, Keys.ENTER)
    keys.page.shows("Positions", "orders")


def test_a_record_is_found_by_its_key(keys: Keyboard) -> None:
    open_topic(keys, "orders", "4")
    keys.page.shows("50 records")
    keys.press("/")
    keys.to("Key")
    keys.press("customer-7", Keys.ENTER)
    keys.page.shows("1 found", '{"number": 7}')
    assert keys.strokes <= allowed("find a record by its key")


def test_a_group_says_why_it_lags(keys: Keyboard) -> None:
    open_group(keys, "billing")
    keys.page.shows("Nobody reads: the group has no member now.", "lag 58")
    assert keys.strokes <= allowed("why does a group lag")


def test_positions_of_a_group_are_set(keys: Keyboard) -> None:
    open_group(keys, "billing")
    keys.use("Set positions…")
    keys.in_dialog()
    keys.press(Keys.ENTER)
    keys.page.shows("Lag then")
    keys.use("Set them")
    keys.page.shows("positions of billing in orders are set")
    assert keys.strokes <= allowed("set a group back to the beginning")


def test_who_writes_to_a_topic_is_seen(keys: Keyboard) -> None:
    open_topic(keys, "orders", "2")
    keys.page.shows("Writers", "checkout", "anonymous")
    assert keys.strokes <= allowed("who writes to a topic")


def test_a_migration_is_watched(keys: Keyboard) -> None:
    keys.press("g", "j")
    keys.page.shows("old-cluster", "42 %", "running")
    assert keys.strokes <= allowed("watch a migration")


def test_a_transaction_is_aborted(keys: Keyboard) -> None:
    keys.press("g", "x")
    keys.page.shows("settlement", "Ongoing")
    keys.press("l")
    keys.use("Abort…", "settlement")
    keys.in_dialog()
    keys.use("Abort it")
    keys.page.shows("No transaction is open")
    assert keys.strokes <= allowed("abort a transaction")


def test_a_topic_is_made_with_its_configuration(keys: Keyboard, node: NodeProcess) -> None:
    keys.press("g", "t")
    keys.page.shows("orders")
    keys.use("New topic")
    keys.in_dialog()
    keys.press("made")
    keys.to("Kept for")
    keys.press("1 min", Keys.ENTER)
    keys.page.shows("made made")
    assert keys.strokes <= allowed("create a topic with its configuration")
    with urlopen(f"{node.console}/api/topics/made", timeout=PATIENCE) as answer:
        assert json.load(answer)["config"] == {"retention.ms": "60000"}


def test_a_rule_is_added(keys: Keyboard) -> None:
    keys.press("g", "a")
    keys.page.shows("No rules.")
    keys.use("Add a rule…")
    keys.in_dialog()
    keys.to("Who")
    keys.press(Keys.END, "ann")
    keys.to("Name")
    keys.press("ledger", Keys.ENTER)
    keys.page.shows("User:ann", "topic ledger")
    assert keys.strokes <= allowed("allow a user to read a topic")


def test_a_record_is_seen_as_each_protocol_shows_it(keys: Keyboard) -> None:
    open_topic(keys, "orders", "4")
    keys.page.shows("50 records")
    keys.press("l", Keys.TAB, Keys.ENTER)
    keys.page.shows("Kafka", "Pravega", "YDB", "as written", "translated")
    assert keys.strokes <= allowed("one record in three protocols")


def test_a_selection_is_replayed(keys: Keyboard) -> None:
    open_topic(keys, "orders", "4")
    keys.page.shows("50 records")
    keys.press("l", Keys.SPACE, Keys.ARROW_DOWN, Keys.SPACE)
    keys.to("Replay into another topic…", back=True)
    keys.press(Keys.ENTER)
    keys.page.shows("2 records, as chosen")
    keys.press("target", Keys.ENTER)
    keys.page.shows("2 records stored in target")
    assert keys.strokes <= allowed("replay a selection")
