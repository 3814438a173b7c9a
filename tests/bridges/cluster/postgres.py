"""Processes of a simulated world that reach their database by the product's engine for PostgreSQL.

The engine is the product's, in a copy of its module whose clock, chance and connections are the world's; what breaks is
the wire below it (tests/anabranch_kit/sql/wire_server.py). So the engine's promises are put to the test together with
what relies on them: what was told as done is there, once, and what was told as failed never is.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any

from anabranch_kit.sql import postgres
from anabranch_kit.sql.connection import Connection
from anabranch_kit.sql.engine import Job, SqlFailed
from tests.anabranch_kit.sql.wire_server import Fault, Server, Wired
from tests.left_out import without
from tests.sbp_back.range_server.object_log.checker import Broken
from tests.sbp_back.range_server.object_log.world import World

_TOGETHER = 4
"""Closures of one transaction."""
FAULTS = [one for one in Fault if one is not Fault.NONE]
_USUAL, _DECISIVE = 0.004, 0.04
"""How often a statement breaks: any, and those of which much depends."""
_AGAIN = 8.0
"""How many times as often, soon after something has broken."""

Guard = Callable[[Callable[..., None]], Callable[..., None]]


class Gone(BaseException):
    """The process was killed while it waited."""


class Database:
    """The server, and what its clients were told. ``left_out``: a line of the engine's, and what stands there."""

    def __init__(self, world: World, committed: Callable[[], None], left_out: tuple[str, str] | None = None) -> None:
        self.world = world
        self.server = Server(world, self._fault, committed, self._rest)
        self.running: list[Client] = []
        self.told: dict[int, bool] = {}
        self._asked = 0
        self._bad_until = 0.0
        self._module = _engine(left_out)
        self._module.time = SimpleNamespace(monotonic=lambda: world.now, sleep=self._sleep)  # type: ignore[attr-defined]
        self._module.random = world.random  # type: ignore[attr-defined]
        Wired.server = self.server
        self.server.connection.execute("CREATE TABLE asked (id INTEGER)")

    def client(self, guard: Guard) -> Client:
        """Begin a process; ``guard`` makes its steps those of its life."""
        return Client(self, self._module.PostgresEngine(self.server.url, (), schema="anabranch"), guard)

    def next_id(self) -> int:
        self._asked += 1
        return self._asked

    def judge(self) -> None:
        """Raises Broken."""
        self.server.end_holders(None, 0.0)
        query = "SELECT id, count(*) FROM asked GROUP BY id"
        there: dict[int, int] = dict(self.server.connection.execute(query).fetchall())
        for number, done in self.told.items():
            if there.get(number, 0) != done:
                raise Broken(
                    f"closure {number} was told as {'done' if done else 'failed'}: {there.get(number, 0)} times there"
                )
        if len(set(there.values())) > 1:
            raise Broken("a closure was committed twice")

    def _fault(self, text: str) -> Fault:
        world = self.world
        usual = _DECISIVE if text.startswith("COMMIT") or "sql_commits" in text else _USUAL
        if not world.chance(min(usual * (_AGAIN if world.now < self._bad_until else 1), 0.5)):
            return Fault.NONE
        self._bad_until = world.now + world.random.uniform(0.0, 1.5)
        fault = world.random.choice(FAULTS)
        world.tell(f"{fault.value}: {text.split(None, 1)[0]}")
        return fault

    def _rest(self) -> None:
        if self.running and self.world.chance(0.005):
            self.running[-1].wait(self.world.random.uniform(0.0, 0.2))

    def _sleep(self, seconds: float) -> None:
        self.running[-1].wait(seconds)


class Client:
    """The database's thread of a process: one transaction at a time, of what waits."""

    def __init__(self, database: Database, engine: postgres.PostgresEngine, guard: Guard) -> None:
        self.gone = False
        self._database = database
        self._world = database.world
        self._engine = engine
        self._engine._stopping = self  # type: ignore[assignment]
        self._guard = guard
        self._queue: deque[_Asked] = deque()
        self._busy = False

    # --- as the event by which a process stops ------------------------------------------------------------------------

    def is_set(self) -> bool:
        return False

    def wait(self, seconds: float) -> None:
        """Have time pass in which others do something."""
        world = self._world
        world.run(world.now + seconds)
        if self.gone:
            raise Gone

    # --- closures -----------------------------------------------------------------------------------------------------

    def ask(self, work: Callable[[Connection], Any], done: Callable[[bool, Any], None]) -> None:
        """``done`` gets whether it was committed, and what ``work`` gave. Without a commit nothing has happened."""
        self._queue.append(_Asked(self._database.next_id(), work, self._guard(done)))
        self._begin()

    def _begin(self) -> None:
        if self._queue and not self._busy:
            self._busy = True
            self._world.after(self._world.latency(0.001), self._guard(self._run))

    def _run(self) -> None:
        if self.gone:
            return
        group = [self._queue.popleft() for _ in range(min(len(self._queue), _TOGETHER))]
        self._database.running.append(self)
        try:
            self._engine.execute(list(group), self._refuse)
        except Gone:
            return
        finally:
            self._database.running.pop()
        self._busy = False
        if self.gone:
            return  # what it was told it tells nobody
        self._give(group)
        self._begin()

    def _refuse(self, failure: SqlFailed) -> None:
        refused, self._queue = list(self._queue), deque()
        for one in refused:
            one.error = failure
        self._give(refused)

    def _give(self, group: list[_Asked]) -> None:
        for one in group:
            if one.error is not None and not isinstance(one.error, SqlFailed):
                raise one.error
            done = one.error is None
            if one.changes or not done:
                self._database.told[one.id] = done
            self._world.after(self._world.latency(0.001), partial(one.done, done, one.result))

    def kill(self) -> None:
        """The process ends, wherever it is."""
        self.gone = True
        if self._engine._db is not None:
            self._engine._db.close()


class _Asked(Job):
    __slots__ = ("changes", "done", "id", "work")

    def __init__(self, number: int, work: Callable[[Connection], Any], done: Callable[[bool, Any], None]) -> None:
        super().__init__(self._work, False, False)
        self.id = number
        self.work = work
        self.done = done
        self.changes = False

    def _work(self, connection: Any) -> Any:
        connection.changed = False
        result = self.work(connection)
        self.changes = connection.changed
        if self.changes:
            connection.execute("INSERT INTO asked (id) VALUES (?)", (self.id,))
        return result


@cache
def _engine(left_out: tuple[str, str] | None) -> ModuleType:
    """The engine's module in a world of its own."""
    module = without(postgres, *(left_out or ("TRIES = 10", "TRIES = 10")))
    module._Connection = Wired  # type: ignore[attr-defined]
    module.TRIES = 2  # type: ignore[attr-defined]
    module.CONFLICTS_S = 0.0  # type: ignore[attr-defined]
    module.logger = logging.getLogger("simulated")  # type: ignore[attr-defined]
    module.logger.setLevel(logging.CRITICAL)
    return module
