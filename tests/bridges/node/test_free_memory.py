"""What a node has of the system's memory beyond its need goes back, and where it is needed that is seldom asked."""

from __future__ import annotations

from bridges.node.process.memory import FreeMemory

MIB = 1024 * 1024


class Process:
    """A process with a heap of which some is free."""

    def __init__(self) -> None:
        self.used = self.has = 60 * MIB
        self.now = 1000.0
        self.asked: list[float] = []

    def take(self, size: int) -> None:
        self.used += size
        self.has = max(self.has, self.used)

    def give_back(self) -> None:
        self.asked.append(self.now)
        self.has = self.used

    def free(self, allowed: int) -> FreeMemory:
        return FreeMemory(allowed, resident=lambda: self.has, give_back=self.give_back, clock=lambda: self.now)


async def looks(process: Process, free: FreeMemory, seconds: int) -> None:
    for _ in range(seconds):
        await free.return_unused()
        process.now += 1


async def test_nothing_is_given_back_of_what_may_be_kept() -> None:
    process = Process()
    free = process.free(256 * MIB)
    process.take(256 * MIB)
    process.take(-256 * MIB)
    await looks(process, free, 100)
    assert process.asked == []
    assert process.has == 316 * MIB


async def test_what_is_free_beyond_that_goes_back_and_again_when_it_comes_again() -> None:
    process = Process()
    free = process.free(256 * MIB)
    for _ in range(3):
        process.take(500 * MIB)
        process.take(-500 * MIB)
        await looks(process, free, 3)
        assert process.has == 60 * MIB
    assert len(process.asked) == 3


async def test_where_the_memory_is_in_use_it_is_asked_more_and_more_seldom_until_it_helps() -> None:
    process = Process()
    free = process.free(256 * MIB)
    process.take(500 * MIB)
    await looks(process, free, 3600)
    pauses = [later - earlier for earlier, later in zip(process.asked, process.asked[1:], strict=False)]
    assert pauses[:3] == [4, 8, 16]
    assert max(pauses) == 20
    assert len(process.asked) <= 3 + 3600 // 20
    process.take(-500 * MIB)
    await looks(process, free, 20)
    assert process.has == 60 * MIB
    process.take(500 * MIB)
    process.take(-500 * MIB)
    await looks(process, free, 4)
    assert process.has == 60 * MIB
