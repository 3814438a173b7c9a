"""Work for the end of a cycle of the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from anabranch_kit.run.cycle import CycleLoop, cycle_of
from tests.kit.waiting import until


def on_cycles(main: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=CycleLoop) as runner:
        runner.run(main())  # type: ignore[arg-type]


def test_what_is_gathered_is_done_once_all_that_is_ready_has_had_its_say_and_answers_behind_it() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        cycle = cycle_of(loop)
        done: list[str] = []
        ended = loop.create_future()
        pipes = [os.pipe() for _ in range(3)]

        def ready(number: int) -> None:
            os.read(pipes[number][0], 1)
            done.append(f"ready {number}")
            cycle.answer(lambda: done.append(f"answer {number}"))
            cycle.gather(lambda: done.append(f"gathered {number}"))
            loop.call_soon(done.append, "next turn")
            if number == 2:
                cycle.gather(lambda: cycle.answer(lambda: ended.set_result(None)))

        for number, (reader, writer) in enumerate(pipes):
            loop.add_reader(reader, ready, number)
            os.write(writer, b"x")
        await ended
        first = done[: done.index("next turn")]
        assert sorted(first[:3]) == ["ready 0", "ready 1", "ready 2"]
        assert sorted(first[3:6]) == ["gathered 0", "gathered 1", "gathered 2"]
        assert sorted(first[6:]) == ["answer 0", "answer 1", "answer 2"]
        for pipe in pipes:
            loop.remove_reader(pipe[0])
            for fd in pipe:
                os.close(fd)

    on_cycles(main)


def test_work_that_makes_more_work_keeps_nobody_waiting_and_is_not_forgotten() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        cycle = cycle_of(loop)
        turns: list[int] = []
        ended = loop.create_future()

        def again() -> None:
            turns.append(0)
            if turns.count(0) == 5:
                ended.set_result(None)
            else:
                loop.call_soon(turns.append, 1)
                cycle.gather(again)  # too late for this cycle

        loop.call_later(0, cycle.gather, again)  # a timer comes behind the end, too
        async with asyncio.timeout(10):
            await ended
        assert turns == [0, 1, 0, 1, 0, 1, 0, 1, 0]

    on_cycles(main)


def test_what_one_raises_is_told_and_the_others_are_done() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        told: list[dict[str, object]] = []
        loop.set_exception_handler(lambda _, context: told.append(context))
        cycle = cycle_of(loop)
        ended = loop.create_future()

        def broken() -> None:
            raise RuntimeError("broken")

        cycle.gather(broken)
        cycle.gather(lambda: cycle.answer(broken))
        cycle.gather(lambda: cycle.answer(lambda: ended.set_result(None)))
        async with asyncio.timeout(10):
            await ended
        assert [str(context["exception"]) for context in told] == ["broken", "broken"]

    on_cycles(main)


async def test_on_any_other_loop_work_is_done_in_the_next_turn() -> None:
    cycle = cycle_of(asyncio.get_running_loop())
    done: list[str] = []
    cycle.gather(lambda: done.append("gathered"))
    cycle.answer(lambda: done.append("answered"))
    assert not done
    await asyncio.sleep(0)
    assert done == ["gathered", "answered"]


def test_what_wakes_another_thread_is_done_behind_everything_else_unless_answers_would_hold_it_up() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        cycle = cycle_of(loop)
        done: list[str] = []

        def gathered() -> None:
            done.append("gathered")
            cycle.hand_over(lambda: done.append("handed over"))
            cycle.gather(lambda: done.append("next cycle"))

        loop.call_soon(cycle.gather, gathered)
        await until(lambda: "next cycle" in done)
        alone = ["gathered", "handed over", "next cycle"]
        assert [one for one in done if one in alone] == alone
        done.clear()
        cycle.gather(gathered)
        cycle.answer(lambda: done.append("answer"))
        await until(lambda: "answer" in done)
        assert done[:3] == ["gathered", "handed over", "answer"]

    on_cycles(main)


def test_a_loop_without_cycles_hands_over_at_once() -> None:
    async def main() -> None:
        done: list[str] = []
        cycle_of(asyncio.get_running_loop()).hand_over(lambda: done.append("handed over"))
        assert done

    asyncio.run(main())
