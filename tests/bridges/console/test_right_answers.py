"""What the page says is so: records as written, times, a node that is gone, who asks, and what a name hides."""

from __future__ import annotations

import asyncio
import time

import pytest
from selenium.webdriver.common.by import By

from bridges.auth import Resource, ResourceKind
from bridges.catalog.views.jobs import JobView
from bridges.formats import FormatId
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Batch
from bridges.node.assembly import Node
from tests.bridges.console.page import Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

DIALOG = "//dialog[@open]"
NUMBERS = b'{"id":1234567890123456789,"huge":1e400,"price":0.10,"none":[],"twice":1,"twice":2,"text":"a \\"b\\" {c}"}'
REVERSED = "invoice\u202eexe.pdf"


async def put(node: Node, topic: str, *records: Record) -> None:
    log = node.logs.get(topic, 0)
    assert log is not None
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    batch = Batch(encode(list(records)), len(records), int(FormatId.KAFKA), records[-1].timestamp)
    log.append(batch, lambda at, error: done.set_result(at.base) if error is None else done.set_exception(error))
    await done


async def test_json_is_indented_and_nothing_of_it_is_changed(page: Page) -> None:
    await page.node.catalog.create_topic("t", 1)
    await put(page.node, "t", Record(b"k", NUMBERS, timestamp=1))

    def look() -> str:
        page.open("topic/t/records")
        page.press("0:0")
        page.shows("Pravega")
        return str(page.find(f"{DIALOG}//pre[contains(text(), 'huge')]").get_attribute("textContent"))

    text = await asyncio.to_thread(look)
    assert '\n  "id": 1234567890123456789,\n  "huge": 1e400,\n  "price": 0.10,\n  "none": [],' in text
    assert '"twice": 1,\n  "twice": 2,\n  "text": "a \\"b\\" {c}"\n}' in text


async def test_bytes_and_marks_of_direction_are_seen_as_what_they_are(page: Page) -> None:
    await page.node.catalog.create_topic("t", 1)
    await put(page.node, "t", Record(b"\xff\x00\x01", b"\xff" * 100, [(REVERSED, b"\x1b[31m")], 1))
    await put(page.node, "t", Record(b"/wAB", REVERSED.encode(), timestamp=2))

    def look() -> None:
        page.open("topic/t/records")
        page.shows("hex ff 00 01", "base64 ////", "/wAB", "invoice\\u202eexe.pdf: \\u001b[31m")
        assert "\u202e" not in page.text()
        page.press("0:0")
        page.shows("bytes", "base64 /wAB")

    await asyncio.to_thread(look)


async def test_the_oldest_kept_is_the_oldest(page: Page) -> None:
    await page.node.catalog.create_topic("t", 1)
    hour, now = 3_600_000, int(time.time() * 1000)
    await put(page.node, "t", Record(b"k", b"v", timestamp=now - 50 * hour), Record(b"k", b"v", timestamp=now))

    def look() -> None:
        page.open("topic/t/partitions")
        page.shows("2 d")
        page.open("topic/t")
        page.shows("2 d", "oldest kept")

    await asyncio.to_thread(look)


async def test_all_times_are_in_the_zone_that_was_chosen(page: Page) -> None:
    await page.node.catalog.create_topic("t", 1)
    await put(page.node, "t", Record(b"k", b"early", timestamp=0), Record(b"k", b"late", timestamp=3_600_000))

    def look() -> None:
        driver = page.driver
        driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Tokyo"})
        page.open("topic/t/records")
        page.shows("Time (UTC)", "1970-01-01 01:00:00.000")
        page.find("//button[@id='zone']").click()
        page.shows("Time (Asia/Tokyo)", "1970-01-01 10:00:00.000")
        driver.execute_script(
            "const [from] = [...document.querySelectorAll('select')]; from.value = 'time';"
            "from.dispatchEvent(new Event('change'));"
        )
        page.shows("Time (Asia/Tokyo)")
        driver.execute_script("document.querySelector('input[type=datetime-local]').value = '1970-01-01T09:30:00'")
        page.press("Show")
        page.shows("1 record,", "late")
        page.find("//button[@id='zone']").click()
        page.shows("Time (UTC)")
        driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})

    await asyncio.to_thread(look)


async def test_a_node_that_is_gone_is_said_to_be_and_its_numbers_are_old(page: Page) -> None:
    await page.node.catalog.create_topic("t", 1)
    await asyncio.to_thread(page.open, "")
    await asyncio.to_thread(page.shows, "Busiest topics", "version")
    old = "return getComputedStyle(document.querySelector('main')).opacity < 1"

    def gone() -> None:
        page.driver.execute_cdp_cmd("Network.enable", {})
        cut = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", cut)
        page.shows("No answer since", "UTC", "the node does not answer", "Busiest topics", "version")
        assert page.driver.execute_script(old)
        page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**cut, "offline": False})
        page.press("Try again")
        page.until(lambda: not page.driver.execute_script(old))
        assert "No answer since" not in page.text()

    await asyncio.to_thread(gone)


class TopicsOfOthers:
    """Lets nobody see anything."""

    def allows(self, principal: object, operation: object, resource: Resource) -> bool:
        return resource.kind is ResourceKind.GROUP

    def stand_in(self, principal: object) -> object:
        return principal


async def test_who_may_see_nothing_is_not_told_that_there_is_nothing(page: Page) -> None:
    await page.node.catalog.create_topic("t", 1)

    page.node.floors.host.authorizer = TopicsOfOthers()

    def look() -> None:
        page.open("topics")
        page.shows("no rights on the node", "No topics that somebody without a login may see")
        assert "No topics yet" not in page.text()

    await asyncio.to_thread(look)


async def test_name_and_password_in_the_address_break_nothing(page: Page) -> None:
    await page.node.catalog.create_topic("seen", 1)

    def look() -> None:
        page.driver.get("about:blank")
        page.driver.get(page.url.replace("http://", "http://alice:secret@") + "#/topics")
        page.shows("seen", "may do everything")

    await asyncio.to_thread(look)


async def test_a_topic_is_deleted_by_its_name_and_keys_without_effect_look_it(page: Page) -> None:
    await page.node.catalog.create_topic("orders", 1)

    def act() -> None:
        page.open("topic/orders/config")
        page.shows("kept, without effect here")
        assert page.find("//tr[td[contains(., 'flush.ms')]]").text.count("without effect") == 1
        assert "without effect" not in page.find("//tr[td[text()='retention.ms']]").text
        page.press("Delete the topic…")
        assert not page.find(f"{DIALOG}//button[text()='Delete it']").is_enabled()
        page.field("Type its name", DIALOG).send_keys("orders")
        page.press("Delete it", DIALOG)
        page.shows("deleted orders")

    await asyncio.to_thread(act)
    assert "orders" not in page.node.catalog.topics


async def test_a_rule_has_no_name_that_nobody_gave(page: Page) -> None:
    def look() -> None:
        page.open("access")
        page.press("Add a rule…")
        assert page.field("Name", DIALOG).get_attribute("value") == ""
        page.press("Add", DIALOG)
        assert page.driver.find_elements(By.XPATH, DIALOG)

    await asyncio.to_thread(look)


class Verification:
    """A job that has ended with exit code 2."""

    def jobs(self) -> list[JobView]:
        return [JobView("v", "audit", "orders", "different", "root", 3, 3, "records", None, None, 0, 0, {})]


async def test_a_verification_that_found_differences_is_red(page: Page) -> None:
    page.node.floors.host.job_directories = lambda: {"pipeline": Verification()}

    def look() -> None:
        page.open("jobs")
        page.shows("orders", "different")
        assert "bad" in page.find("//td//span[text()='different']").get_attribute("class").split()

    await asyncio.to_thread(look)
