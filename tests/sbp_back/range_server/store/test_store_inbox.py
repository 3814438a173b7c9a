"""What threads hand to the event loop: all of it, in order, once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sbp_back.range_server.store.writing.inbox import Inbox
from tests.kit.waiting import until


async def test_everything_arrives_in_the_order_of_each_thread() -> None:
    got: list[tuple[int, int]] = []
    finished = asyncio.Event()
    each, threads = 2000, 4

    def receive(thing: tuple[int, int]) -> None:
        assert threading.current_thread() is threading.main_thread()
        got.append(thing)
        if len(got) == each * threads:
            finished.set()

    inbox: Inbox[tuple[int, int]] = Inbox(receive)
    inbox.start(asyncio.get_running_loop())

    def work(thread: int) -> None:
        for number in range(each):
            inbox.put((thread, number))

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    await finished.wait()
    for worker in workers:
        worker.join()
    inbox.close()
    for thread in range(threads):
        assert [number for owner, number in got if owner == thread] == list(range(each))


async def test_what_has_piled_up_is_received_a_share_at_a_time() -> None:
    shares: list[int] = [0]
    inbox: Inbox[int] = Inbox(lambda thing: shares.append(shares.pop() + 1))
    inbox.start(asyncio.get_running_loop())
    for number in range(1000):
        inbox.put(number)
    async with asyncio.timeout(30):
        while sum(shares) < 1000:
            await asyncio.sleep(0)
            shares.append(0)
    inbox.close()
    assert max(shares) <= 200, "what one turn had, though the test may see two as one"


async def test_the_loop_is_woken_again_after_each_time_it_looked() -> None:
    """A thing a turn, so that every one needs a wake-up of its own."""
    arrived: asyncio.Queue[int] = asyncio.Queue()
    inbox: Inbox[int] = Inbox(arrived.put_nowait)
    inbox.start(asyncio.get_running_loop())
    for number in range(100):
        await asyncio.to_thread(inbox.put, number)
        assert await arrived.get() == number
    inbox.close()


async def test_one_thing_at_once_comes_behind_what_was_there() -> None:
    got: list[str] = []
    inbox: Inbox[str] = Inbox(got.append)
    inbox.start(asyncio.get_running_loop())
    inbox.put("first")
    inbox.receive_next("second")
    assert got == ["first", "second"]
    inbox.put("third")
    await until(lambda: len(got) >= 3)
    assert got == ["first", "second", "third"]
    inbox.close()


async def test_an_exception_loses_nothing_else() -> None:
    got: list[int] = []
    reported: list[BaseException] = []
    finished = asyncio.Event()

    def receive(number: int) -> None:
        if number == 1:
            raise ValueError(number)
        got.append(number)
        if number == 3:
            finished.set()

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
    inbox: Inbox[int] = Inbox(receive)
    inbox.start(loop)
    for number in range(4):
        inbox.put(number)
    await finished.wait()
    inbox.close()
    assert got == [0, 2, 3]
    assert [type(error) for error in reported] == [ValueError]
    inbox.put(1)
    inbox.put(4)
    with pytest.raises(ValueError, match="1"):
        inbox.drain()
    inbox.drain()
    assert got == [0, 2, 3, 4], "a closed one keeps what it has for whoever asks"


def test_it_can_be_closed_when_its_loop_is() -> None:
    got: list[int] = []
    inbox: Inbox[int] = Inbox(got.append)

    async def use() -> None:
        inbox.put(0)
        inbox.start(asyncio.get_running_loop())

    asyncio.run(use())
    inbox.put(1)
    inbox.drain()
    inbox.close()
    inbox.close()
    assert got == [0, 1]
