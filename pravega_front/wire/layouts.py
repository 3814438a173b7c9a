"""Base class of all commands, and the registry of their layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

from msgspec import Struct

from pravega_front.wire.fields import Layout

NO_NUMBER = -(1 << 63)
"""Absent number: the last event of a new writer, or an attribute that is not set."""
NO_ID = -1
"""Request id of a command from a peer too old to send one."""
LAYOUTS: dict[int, Layout] = {}
"""Layouts of all commands, by code."""


class Command(Struct):
    """Base of all commands; ``code`` is the frame's type."""

    code: ClassVar[int]


C = TypeVar("C", bound=type[Command])


def of_code(code: int) -> Callable[[C], C]:
    """Register a class as the command of a type."""

    def register(command: C) -> C:
        command.code = code
        LAYOUTS[code] = Layout(command)
        return command

    return register
