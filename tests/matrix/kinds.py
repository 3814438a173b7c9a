"""Kinds of records, as data: what writers of the matrix are given, and what its readers tell of each."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

import zstandard

from tests.bridges.formats.ydb_messages import lzop

Headers = tuple[tuple[str, bytes | None], ...]

CREATED = 1_700_000_000_123
"""When a record was created, in ms, that says nothing else."""
LARGE = random.Random(22).randbytes(2_500_000)
TEXT = b"the same words over and over, so that they compress; " * 40
NO_EVENT = b"\0\0\0\x07ab"
HALF_EVENT = b"\0\0\0\0\0\0\0\x02ab\0\0"
BYTES = "pravega.bytes"
"""As what records are marked that are bytes and no events."""


class Untold(Enum):
    """What stands for a field."""

    UNTOLD = auto()
    """Of which a reader's protocol, or its client, says nothing."""
    APPENDED = auto()
    """A time that is that of the append, which only the log knows."""


UNTOLD, APPENDED = Untold


class Where(Enum):
    """Which topic a record goes to: some readers, of the record's own protocol, cannot pass others by."""

    MAIN = "main"
    APART = "apart"
    """Bodies that not all SDKs of YDB decode."""
    BYTES = "bytes"
    """Of byte streams, which readers of events cannot pass."""
    STAMPED = "stamped"
    """Its configuration has ``message.timestamp.type=LogAppendTime``."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One record. ``created`` is in ms. ``codec`` names what a client compresses with, or sends as compressed with;
    ``sent`` is then what YDB's clients send instead of ``value``."""

    name: str
    value: bytes | None = b"value"
    key: bytes | None = b"key"
    headers: Headers = ()
    created: int = CREATED
    codec: str = "none"
    sent: bytes | None = None
    decodes: bool = True
    where: Where = Where.MAIN
    ydb_alone: bool = False
    bytes_alone: bool = False
    """``sent`` is what a byte stream is given: bytes of a segment, which nobody has framed."""


KINDS: Sequence[Kind] = (
    Kind("key and value"),
    Kind("no key", key=None),
    Kind("key of no bytes", key=b""),
    Kind("key that is no text", key=bytes(range(256))),
    Kind("value that is no text", bytes(range(256))),
    Kind("headers, one repeated", headers=(("a", b"1"), ("b", b"2"), ("a", b"3"))),
    Kind("header of no bytes", headers=(("empty", b""),)),
    Kind("header without a value", headers=(("null", None), ("other", b"1"))),
    Kind("header that is no text", headers=(("größe", bytes(range(256))),)),
    Kind("header `__key`, and a key", headers=(("__key", b"mine"),)),
    Kind("header `__key`, and no key", key=None, headers=(("__key", b"mine"),)),
    Kind("created in 1969", created=-86_400_000),
    Kind("created at 0", created=0),
    Kind("created in 2100", created=4_102_444_800_000),
    Kind("created in 33658", created=10**15),
    Kind("gzip", TEXT, codec="gzip", sent=gzip.compress(TEXT, mtime=0)),
    Kind("snappy", TEXT, codec="snappy"),
    Kind("lz4", TEXT, codec="lz4"),
    Kind("zstd", TEXT, codec="zstd"),
    Kind("2.5 MB", LARGE, key=None),
    # Pravega's wheel reads no event of no bytes, and nothing behind one.
    Kind("value of no bytes", b""),
    Kind("no value", None),
    Kind("neither key nor value", None, None),
    # Java's reader takes an event of no bytes for one when there are bytes behind it, or after half a minute.
    Kind("what comes behind", key=None),
    Kind("bytes that are an event", b"ab", key=None, sent=b"\0\0\0\0\0\0\0\x02ab", where=Where.BYTES,
         bytes_alone=True),
    Kind("bytes that are no event", NO_EVENT, key=None, codec=BYTES, sent=NO_EVENT, decodes=False, where=Where.BYTES,
         bytes_alone=True),
    Kind("bytes that begin as an event", HALF_EVENT, key=None, codec=BYTES, sent=HALF_EVENT, decodes=False,
         where=Where.BYTES, bytes_alone=True),
    Kind("time of the append", key=None, where=Where.STAMPED),
    Kind("YDB's zstd", TEXT, codec="zstd", sent=zstandard.compress(TEXT), where=Where.APART, ydb_alone=True),
    Kind("YDB's lzop", TEXT, codec="lzop", sent=lzop(TEXT), where=Where.APART, ydb_alone=True),
    Kind("YDB's codec 10007", b"?!", codec="custom-10007", sent=b"?!", decodes=False, where=Where.APART,
         ydb_alone=True),
    Kind("YDB's gzip, cut short", TEXT, codec="gzip", sent=gzip.compress(TEXT, mtime=0)[:-6], decodes=False,
         where=Where.APART, ydb_alone=True),
)  # fmt: skip

CODEC_NUMBERS = {"none": 1, "gzip": 2, "lzop": 3, "zstd": 4, "custom-10007": 10_007}
"""As YDB has them."""


@dataclass(frozen=True, slots=True)
class Told:
    """A record as a reader tells of it. ``created`` is None where no time is told; ``written`` in ms."""

    offset: int | Untold
    value: bytes | None
    key: bytes | Untold | None = UNTOLD
    headers: Headers | Untold = UNTOLD
    created: int | Untold | None = UNTOLD
    written: int | Untold = UNTOLD
