"""Damage to the log of a dead node: torn writes behind its end, and one flipped bit inside acknowledged data."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anabranch_kit.disk.files import Files
from sbp_back.range_server.store.layout.checkpoint import checkpoint_files, decode
from sbp_back.range_server.store.layout.format import BLOCK, RECORD, RecordType, decode_segment_header, encode_group
from sbp_back.range_server.store.layout.scan import Group, SegmentScanner
from sbp_back.wire.frame import crc32

KINDS = ("nothing", "garbage", "torn header", "torn body", "body without header", "group of an earlier use")


class NoPlace(Exception):
    """The log has no group of the kind that was to be damaged."""


@dataclass(slots=True)
class Tail:
    """The end of the log: the last segment that has groups, its groups, and what the next group would be."""

    path: Path
    base: int
    salt: int
    groups: list[Group]
    position: int
    room: int
    seq: int


def directories(data: Path) -> tuple[Path, Path]:
    """The directories of segments and of checkpoints below a node's data directory. Raises NoPlace."""
    found = next(iter(sorted(data.rglob("*.seg"))), None)
    if found is None:
        raise NoPlace(f"there is no segment below {data}")
    return found.parent, found.parent.parent / "ckpt"


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _groups(path: Path) -> tuple[int, int, int, list[Group]]:
    """(base, salt, size of the file, groups) of a segment."""
    with _opened(path, os.O_RDONLY) as descriptor:
        header = decode_segment_header(os.pread(descriptor, BLOCK, 0))
        scanner = SegmentScanner(Files(), descriptor, header.base, header.salt)
        return header.base, header.salt, scanner.file_size, list(scanner.groups(BLOCK))


def find_tail(data: Path) -> Tail | None:
    """The end of the log; None when no group was ever written."""
    wal, _ = directories(data)
    for path in sorted(wal.glob("*.seg"), reverse=True):
        try:
            base, salt, size, groups = _groups(path)
        except ValueError:
            continue  # a segment whose own header is torn has no groups
        if groups:
            last = groups[-1]
            return Tail(path, base, salt, groups, last.end, size - last.end, last.header.seq + 1)
    return None


def _next_group(tail: Tail, salt: int, rng: random.Random) -> bytes:
    """A group as the node might have been writing it when it died: entries of a stream that nobody knows."""
    bodies = [rng.randbytes(rng.randrange(200, 6000)) for _ in range(rng.randrange(1, 6))]
    records = [
        RECORD.pack(RecordType.APPEND, crc32(body), 2**40, 1, 10 * number, 0, 0, 10, len(body))
        for number, body in enumerate(bodies)
    ]
    return b"".join(bytes(part) for part in encode_group(tail.seq, salt, tail.base + tail.position, records, bodies))


def _torn(kind: str, tail: Tail, rng: random.Random) -> bytes:
    if kind == "garbage":
        return rng.randbytes(rng.randrange(1, 65536))
    if kind == "group of an earlier use":
        return _next_group(tail, tail.salt ^ 1, rng)
    whole = bytearray(_next_group(tail, tail.salt, rng))
    if kind == "torn header":
        return bytes(whole[: rng.randrange(1, 48)])
    if kind == "torn body":
        used = len(whole.rstrip(b"\0"))
        cut = rng.randrange(300, used)
        whole[cut:] = bytes(len(whole) - cut)
        whole[used - 1] ^= 0xFF if cut >= used - 1 else 0
        return bytes(whole)
    return bytes(BLOCK) + rng.randbytes(BLOCK)  # the second block reached the disk, the first did not


def tear_tail(data: Path, rng: random.Random) -> str:
    """Write what a crash can leave behind the last whole group, where nothing acknowledged is; the kind written."""
    kind = rng.choice(KINDS)
    tail = find_tail(data)
    if tail is None or kind == "nothing":
        return "nothing"
    bytes_torn = _torn(kind, tail, rng)
    if len(bytes_torn) > tail.room:
        return "nothing"  # the node would have begun a new segment
    with _opened(tail.path, os.O_WRONLY) as descriptor:
        os.pwrite(descriptor, bytes_torn, tail.position)
        os.fsync(descriptor)
    return kind


def _bodies(group: Group) -> Iterator[tuple[int, int]]:
    """Position and length of the body of each record that has one."""
    at = group.body_at
    for *_, length in group.records:
        if length:
            yield at, length
        at += length


def flip_acknowledged_bit(data: Path, rng: random.Random) -> str:
    """Flip one bit in the body of a record that recovery must read and that is followed by a whole group.

    Returns the place for people. Raises NoPlace when there is no such record.
    """
    _, checkpoints = directories(data)
    newest = next(iter(checkpoint_files(checkpoints)), None)
    replayed_from = decode(newest.read_bytes()).lsn if newest is not None else 0
    tail = find_tail(data)
    candidates = [
        place
        for group in (tail.groups[:-1] if tail is not None else [])
        if tail is not None and tail.base + group.position >= replayed_from
        for place in _bodies(group)
    ]
    if tail is None or not candidates:
        raise NoPlace("no group that recovery reads is followed by another")
    position, length = rng.choice(candidates)
    at = position + rng.randrange(length)
    bit = 1 << rng.randrange(8)
    with _opened(tail.path, os.O_RDWR) as descriptor:
        (value,) = os.pread(descriptor, 1, at)
        os.pwrite(descriptor, bytes([value ^ bit]), at)
        os.fsync(descriptor)
    return f"{tail.path.name}, byte {at}"
