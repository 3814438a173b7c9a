"""Parts of every server: a listener with the address it advertises, and stopping in order."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Iterable

from msgspec import Struct, field

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.net.address import WILDCARDS, Address
from anabranch_kit.run.barrier import Barrier
from sbp_back.transport.gate import Check, Gate
from sbp_back.transport.handler import Handler
from sbp_back.transport.listener import Listener, ListenerOptions
from sbp_back.wire.base import Dialect
from sbp_back.wire.v02 import DialectV02

logger = logging.getLogger(__name__)

Step = Callable[[], Awaitable[object]]


class ListenAt(Struct):
    """Setup of a listener. ``address``: host and port (0: the system chooses). ``advertise``: the "host:port" that
    clients are told, where it differs from ``address``. ``budget``: memory that its connections share with others.
    ``check``: reads the tickets that it demands; None: it demands none.
    """

    address: tuple[str, int]
    advertise: str | None = None
    dialect: Dialect = field(default_factory=DialectV02)
    options: ListenerOptions = field(default_factory=ListenerOptions)
    budget: MemoryBudget | None = None
    check: Check | None = None


async def listen(handler: Handler, at: ListenAt, barrier: Barrier) -> Listener:
    """Start a listener. Raises ``OSError`` when the address cannot be bound."""
    if at.check is not None:
        handler = Gate(handler, at.check)
    listener = Listener(handler, at.dialect, *at.address, at.options, at.budget, barrier)
    await listener.start()
    return listener


def advertised(listener: Listener | None, told: str | None) -> str:
    """Return the "host:port" that clients are told: ``told`` if set, else the listener's; empty without either."""
    if told is not None:
        return told
    if listener is None:
        return ""
    host, port = listener.address
    return str(Address(socket.gethostname() if host in WILDCARDS else host, port))


async def run_all(steps: Iterable[Step]) -> None:
    """Run every step in turn. A failing step does not prevent the later ones; the first error is raised in the end."""
    failures: list[Exception] = []
    for step in steps:
        try:
            await step()
        except Exception as error:
            logger.exception("a step of stopping the backend failed")
            failures.append(error)
    if failures:
        raise failures[0]
