"""Messages between a node and the process that decodes: MessagePack, behind four bytes with its length."""

from __future__ import annotations

from typing import BinaryIO

from msgspec import Struct

MOST_SECONDS = 1.0
"""Processor time that a value, or a schema, may take."""
NO_MEMORY = 3
"""Exit code of the process if a value takes all memory that it may have."""


class Definition(Struct, array_like=True):
    """A schema as the registry has it, and what it refers to, by name."""

    kind: str
    text: str
    references: dict[str, str]


class Job(Struct, array_like=True):
    """Bytes to decode, or JSON to ``encode``, by the schema ``number``; or only its definition, which comes before."""

    number: int
    data: bytes
    indexes: bytes
    encode: bool
    definition: Definition | None


class Result(Struct, array_like=True):
    """The data that a job has made, or the reason why there is none."""

    data: bytes
    error: str


def read_frame(stream: BinaryIO) -> bytes | None:
    """Return the next frame; None at the end of the stream."""
    head = stream.read(4)
    data = stream.read(int.from_bytes(head)) if len(head) == 4 else b""
    return data if len(head) == 4 and len(data) == int.from_bytes(head) else None


def write_frame(stream: BinaryIO, data: bytes) -> None:
    """Write a frame."""
    stream.write(len(data).to_bytes(4) + data)
    stream.flush()
