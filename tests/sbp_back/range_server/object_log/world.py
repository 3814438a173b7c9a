"""A simulated world: virtual time, an object store and a database behind a network, from one seed.

Everything that happens is an event at a time; the same seed gives the same events. What fails: answers are lost,
requests come late (also long after whoever sent them has given up), services are away for a while, listings are old.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

Step = Callable[[], None]

_PATIENCE = 2.0
"""Seconds after which whoever asks gives up."""


class World:
    """Time and chance. ``calm`` ends all faults; ``story`` is what happened, one line each."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.calm = False
        self.story: list[str] = []
        self._events: list[tuple[float, int, Step]] = []
        self._order = count()

    def after(self, seconds: float, step: Step) -> None:
        """Have ``step`` done later."""
        heappush(self._events, (self.now + seconds, next(self._order), step))

    def tell(self, line: str) -> None:
        """A line of the story."""
        self.story.append(f"{self.now:.4f} {line}")

    def chance(self, probability: float) -> bool:
        """Whether a fault happens; none does when the world is calm."""
        return not self.calm and self.random.random() < probability

    def latency(self, usual: float) -> float:
        """Seconds that something takes: about as long as usual, and sometimes very long."""
        seconds = usual * (0.5 + self.random.random())
        return seconds * self.random.choice((20, 200)) if self.chance(0.02) else seconds

    def run(self, until: float, over: Callable[[], bool] = lambda: False) -> None:
        """Let time pass."""
        events = self._events
        while events and events[0][0] <= until and not over():
            self.now, _, step = heappop(events)
            step()
        if not over():
            self.now = max(self.now, until)


class Service:
    """Something behind the network that is asked by closures: they take effect at once, at some time, or never."""

    def __init__(self, world: World, name: str, usual: float) -> None:
        self.world = world
        self.name = name
        self.away_until = 0.0
        self._usual = usual

    def ask(self, work: Callable[[], Any], done: Callable[[bool, Any], None]) -> None:
        """``done`` gets whether there was an answer, and which. Without one, ``work`` may have been done, or may be
        done later still."""
        world = self.world
        if world.now < self.away_until and not world.calm:
            world.after(min(world.latency(self._usual), _PATIENCE), lambda: done(False, None))
        elif world.chance(0.03):  # the request is lost
            world.after(1.0, lambda: done(False, None))
        elif world.chance(0.03):  # it comes after its sender has given up
            world.after(world.random.uniform(0.5, 6.0), work)
            world.after(0.5, lambda: done(False, None))
        elif world.chance(0.03):  # the answer is lost
            world.after(world.latency(self._usual), work)
            world.after(1.0, lambda: done(False, None))
        elif (seconds := world.latency(self._usual)) > _PATIENCE:
            world.after(seconds, work)
            world.after(_PATIENCE, lambda: done(False, None))
        else:

            def arrived() -> None:
                answer = work()
                world.after(seconds / 2, lambda: done(True, answer))

            world.after(seconds / 2, arrived)


class Store(Service):
    """Objects: put if there is none, get, list, delete. A listing may be old."""

    def __init__(self, world: World, usual: float) -> None:
        super().__init__(world, "store", usual)
        self.objects: dict[str, Any] = {}
        self._old: dict[str, int] = {}
        self.puts = 0

    def put_absent(self, key: str, content: Any, done: Callable[[bool, Any], None]) -> None:
        """Answers None when it was created, and what is there otherwise."""

        def work() -> Any:
            self.puts += 1
            there = self.objects.get(key)
            if there is None:
                self.objects[key] = content
            return there

        self.ask(work, done)

    def put_over(self, key: str, content: Any, done: Callable[[bool, Any], None]) -> None:
        """What a store without conditions does."""

        def work() -> None:
            self.objects[key] = content

        self.ask(work, done)

    def get(self, key: str, done: Callable[[bool, Any], None]) -> None:
        """Answers None where there is nothing."""
        self.ask(lambda: self.objects.get(key), done)

    def delete(self, keys: list[str]) -> None:
        """Sooner or later; nobody waits for it."""

        def work() -> None:
            for key in keys:
                self.objects.pop(key, None)

        self.ask(work, lambda answered, answer: None)

    def listing(self, prefix: str, done: Callable[[bool, Any], None]) -> None:
        """The keys that begin so, with the bytes of their objects; now and then those of an earlier time."""

        def work() -> dict[str, int]:
            old, self._old = self._old, {key: stored.size for key, stored in self.objects.items()}
            keys = old if self.world.chance(0.3) else self._old
            return {key: size for key, size in keys.items() if key.startswith(prefix)}

        self.ask(work, done)
