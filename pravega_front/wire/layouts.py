"""What all commands are, and how each lies in its frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

from msgspec import Struct

from pravega_front.wire.fields import Layout

NO_NUMBER = -(1 << 63)
"""Pravega's word for a number there is not: of a new writer's last event, of an attribute that is not set."""
NO_ID = -1
"""Request id of a command of a peer that is too old to send one."""
LAYOUTS: dict[int, Layout] = {}
"""How each command lies in its frame, by its code."""


class Command(Struct):
    """Any command; ``code`` is its type."""

    code: ClassVar[int]


C = TypeVar("C", bound=type[Command])


def of_code(code: int) -> Callable[[C], C]:
    """Have a class be the command of a type."""

    def register(command: C) -> C:
        command.code = code
        LAYOUTS[code] = Layout(command)
        return command

    return register
