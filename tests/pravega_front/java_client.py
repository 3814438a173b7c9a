"""Pravega's Java client, in a program that does what it is told."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests import drivers

POM = Path(__file__).resolve().parent / "java" / "pom.xml"
_DRIVER = drivers.java("pravega-java", POM, "anabranch.tests.PravegaDriver")
PROGRAM = replace(
    _DRIVER, run=lambda directory: ["-Xmx768m" if one.startswith("-Xmx") else one for one in _DRIVER.run(directory)]
)
"""With a heap for events of 64 MiB, of which the client holds several copies."""


class Java:
    """The client, told what to do in ``scope`` with which controller (``host:port``); ``always`` is told each time. It
    runs in a program of its own, or in one that is given."""

    def __init__(
        self, controller: str, scope: str, scheme: str = "tcp", driver: drivers.Driver | None = None, **always: Any
    ) -> None:
        self._driver = driver or PROGRAM.start()
        self._told = {"controller": f"{scheme}://{controller}", "scope": scope} | always

    def __call__(self, op: str, **arguments: Any) -> Any:
        """Have the client do something. Raises drivers.DriverError when it fails."""
        return self._driver.call({"op": op} | self._told | arguments)

    def close(self) -> None:
        """End the program."""
        self._driver.close()


def b64(data: bytes) -> str:
    """Bytes as the program takes them."""
    return base64.b64encode(data).decode()


def plain(found: Sequence[str]) -> list[bytes]:
    """Bytes that the program gave."""
    return [base64.b64decode(one) for one in found]


def events(first: int, last: int, keys: int = 1) -> list[list[str]]:
    """Events whose data are numbers, with routing keys."""
    return [[f"key-{number % keys}", b64(f"{number}".encode())] for number in range(first, last)]


def numbers(found: Sequence[str]) -> list[int]:
    """The numbers that events are."""
    return [int(one) for one in plain(found)]
