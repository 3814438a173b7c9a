"""A lane between two nodes over real sockets: which answers come, what becomes of those that do not, how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.net.address import Address
from anabranch_kit.run.barrier import Barrier
from bridges.cluster.members import Member, State
from bridges.cluster.peers.lane import Answers, Lane
from bridges.cluster.peers.peers import LISTENER, LaneOpening, Peers
from bridges.cluster.peers.stream import PeerStream
from bridges.errors import LogError, PeerUnreachable
from tests.kit.waiting import until


class Word:
    """An answer: its number, and the text behind it."""

    def __init__(self, raw: bytes) -> None:
        number, _, self.text = raw.decode().partition(" ")
        self.number = int(number)


def encode(text: str) -> Callable[[int], bytes]:
    return lambda number: f"{number} {text}".encode()


class Lab:
    def __init__(self, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        self.barrier = Barrier()
        self.budget = MemoryBudget(1 << 28, asyncio.get_running_loop().call_soon)
        self.asks, self.answers = (Peers(start, "s", self.barrier, self.budget) for start in (1, 2))
        self.serving: list[Answers] = []

        async def serve(opening: LaneOpening, stream: PeerStream) -> None:
            self.serving.append(Answers(stream, answer, 100, 1 << 20))
            await self.serving[-1].run()

        self.answers.serve_stream("words", LaneOpening, serve)

    async def listen(self) -> None:
        address = await self.answers.listen(Address("127.0.0.1", 0), None, None)
        self.member = Member(2, 2, State.UP, addresses={LISTENER: str(address)})

    @property
    def lane(self) -> Lane[Word]:
        return self.asks.lane(self.member, "words", Word)

    async def ask(self, text: str, patience_s: float = 30) -> str:
        return (await self.lane.ask(encode(text), patience_s)).text


@asynccontextmanager
async def lab_with(answer: Callable[[bytes], Awaitable[bytes]]) -> AsyncIterator[Lab]:
    lab = Lab(answer)
    await lab.listen()
    try:
        yield lab
    finally:
        await asyncio.gather(lab.asks.close(), lab.answers.close())
    await until(lambda: lab.budget.held == 0)


class Held:
    """Answers that a test gives when it wants to."""

    def __init__(self) -> None:
        self.futures: dict[str, asyncio.Future[bytes]] = {}

    def __call__(self, raw: bytes) -> asyncio.Future[bytes]:
        self.futures[Word(raw).text] = future = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: None)
        self.raw = raw
        return future

    def give(self, text: str) -> None:
        number = list(self.futures).index(text) + 1
        self.futures[text].set_result(f"{number} {text}!".encode())


async def test_answers_come_in_any_order_and_a_question_given_up_costs_only_itself() -> None:
    held = Held()
    async with lab_with(held) as lab:
        asked = [asyncio.create_task(lab.ask(text)) for text in ("a", "b", "c")]
        await until(lambda: len(held.futures) == 3)
        held.give("c")
        assert await asked[2] == "c!"
        asked[0].cancel()
        await asyncio.wait({asked[0]})
        held.give("a")  # an answer for nobody
        held.give("b")
        assert await asked[1] == "b!"
        with pytest.raises(PeerUnreachable, match=r"not answered for 0\.01 s"):
            await lab.ask("d", 0.01)
        held.give("d")


async def test_a_lost_stream_fails_every_question_once_and_the_next_lane_is_another() -> None:
    held = Held()
    async with lab_with(held) as lab:
        answers: list[Word | None] = []
        lane = lab.lane
        await lane.send(encode("a"), answers.append)
        asked = asyncio.create_task(lab.ask("b"))
        await until(lambda: len(held.futures) == 2)
        lab.serving[0].stop(finishes=False)
        with pytest.raises(PeerUnreachable, match="node 2 cannot be asked"):
            await asked
        assert answers == [None]
        with pytest.raises(PeerUnreachable):
            await lane.send(encode("c"), answers.append)
        assert answers == [None], "it was not sent, which its sender was told"
        assert lab.lane is not lane
        for text in ("a", "b"):
            held.give(text)


async def test_a_lane_that_is_ended_before_it_is_open_leaves_nobody_waiting() -> None:
    async with lab_with(Held()) as lab:
        asked = asyncio.create_task(lab.ask("a"))
        await asyncio.sleep(0)
        lab.asks.keep_only([1])
        with pytest.raises(PeerUnreachable, match="member no more"):
            await asked


async def test_an_end_that_finishes_answers_what_has_arrived() -> None:
    held = Held()
    async with lab_with(held) as lab:
        asked = [asyncio.create_task(lab.ask(text)) for text in ("a", "b")]
        await until(lambda: len(held.futures) == 2)
        lab.serving[0].stop()
        for text in ("b", "a"):
            held.give(text)
        assert [await one for one in asked] == ["a!", "b!"]


async def test_a_question_that_cannot_be_read_ends_the_stream() -> None:
    async def later(raw: bytes) -> bytes:
        raise LogError("this is no question")

    def at_once(raw: bytes) -> Awaitable[bytes]:
        raise LogError("this is no question")

    for answer in (later, at_once):
        async with lab_with(answer) as lab:
            with pytest.raises(PeerUnreachable):
                await lab.ask("a")
            assert lab.barrier.failures == {"answering another node": 1}


async def test_a_node_that_stops_already_reads_nothing() -> None:
    held = Held()
    async with lab_with(held) as lab:
        run = Answers.run

        async def stopped(answers: Answers) -> None:
            answers.stop()
            await run(answers)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Answers, "run", stopped)
            with pytest.raises(PeerUnreachable):
                await lab.ask("a")
        assert not held.futures


async def test_errors_of_the_encoder_send_nothing() -> None:
    def refuse(number: int) -> bytes:
        raise LogError("too large")

    held = Held()
    async with lab_with(held) as lab:
        with pytest.raises(LogError, match="too large"):
            await lab.lane.ask(refuse, 30)
        asked = asyncio.create_task(lab.ask("b"))
        await until(lambda: len(held.futures) == 1)
        held.futures["b"].set_result(held.raw)
        assert await asked == "b"
