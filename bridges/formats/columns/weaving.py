"""Encoding of columns: the numbers of all records are written into one buffer, and values are put in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bridges.formats.columns.rows import Fields
from bridges.formats.columns.varints import Int64s, put, sizes

_Octets = npt.NDArray[np.uint8]


class Number(NamedTuple):
    """A column of unsigned numbers as varints, none of them negative. ``where``: the records that have it, None for
    all."""

    values: Int64s
    where: Int64s | None = None

    def room(self, count: int) -> Int64s | int:
        if self.where is None:
            return sizes(self.values)
        room = np.zeros(count, np.int64)
        room[self.where] = sizes(self.values)
        return room

    def write(self, octets: _Octets, at: Int64s) -> None:
        put(octets, at if self.where is None else at[self.where], self.values)


class Constant(NamedTuple):
    """The same bytes in each record, or in those at ``where``."""

    data: bytes
    where: Int64s | None = None

    def room(self, count: int) -> Int64s | int:
        if self.where is None:
            return len(self.data)
        room = np.zeros(count, np.int64)
        room[self.where] = len(self.data)
        return room

    def write(self, octets: _Octets, at: Int64s) -> None:
        begin = at if self.where is None else at[self.where]
        for place, byte in enumerate(self.data):
            octets[begin + place] = byte


class BigEndian(NamedTuple):
    """A column of 32-bit big-endian numbers."""

    values: Int64s

    def room(self, count: int) -> int:
        return 4

    def write(self, octets: _Octets, at: Int64s) -> None:
        octets[at[:, None] + np.arange(4)] = self.values.astype(">u4").view(np.uint8).reshape(-1, 4)


Part = Number | Constant | BigEndian | Fields


Before = Callable[[Int64s], Sequence[Number | Constant]]
"""(bytes of each record's parts) -> what is in front of them."""


def weave(count: int, parts: Sequence[Part], before: Before | None = None) -> tuple[bytes, Int64s]:
    """Return ``count`` records, each of which is its ``parts`` in order, and the position at which each ends."""
    heads = np.zeros(count, np.int64)
    fields = np.zeros(count, np.int64)
    rooms: list[Int64s | int] = []
    for part in parts:
        if isinstance(part, Fields):
            fields += part.sizes
            rooms.append(0)
        else:
            room = part.room(count)
            heads += room
            rooms.append(room)
    if before is not None:
        front = before(heads + fields)
        front_rooms = [part.room(count) for part in front]
        parts, rooms = [*front, *parts], [*front_rooms, *rooms]
        heads += sum(front_rooms)
    heads = np.cumsum(heads)
    bounds_of_heads = np.concatenate(([0], heads))
    octets = np.empty(int(bounds_of_heads[-1]), np.uint8)
    at = bounds_of_heads[:-1]
    cuts: list[Int64s] = []
    values: list[Fields] = []
    for part, room in zip(parts, rooms, strict=True):
        if isinstance(part, Fields):
            cuts.append(at)
            values.append(part)
        else:
            part.write(octets, at)
            at = at + room
    head = octets.tobytes()
    ends = heads + np.cumsum(fields)
    if not values:
        return head, ends
    bounds = (np.stack(cuts, 1).ravel() if len(cuts) > 1 else cuts[0]).tolist()
    pieces: list[bytes] = [b""] * (2 * len(bounds) + 1)
    pieces[0::2] = [head[begin:end] for begin, end in zip([0, *bounds], [*bounds, len(head)], strict=True)]
    for number, part in enumerate(values):
        data, starts, stops = part.data, part.starts.tolist(), part.ends.tolist()
        pieces[1 + 2 * number :: 2 * len(values)] = [data[begin:end] for begin, end in zip(starts, stops, strict=True)]
    return b"".join(pieces), ends


def lists(first: Int64s, parts: Sequence[Part], before: Before | None = None) -> Fields:
    """Return for each record the elements from ``first[i]`` to ``first[i + 1]``, encoded as :func:`weave` does."""
    data, ends = weave(int(first[-1]), parts, before)
    bounds = np.concatenate(([0], ends))[first]
    return Fields(data, bounds[:-1], bounds[1:])


def cut(data: bytes, ends: Int64s, firsts: Int64s) -> list[bytes]:
    """Return the bytes of consecutive groups of records, the first of each, and the end, given by ``firsts``."""
    bounds = np.concatenate(([0], ends))[firsts].tolist()
    return [data] if len(bounds) == 2 else [data[begin:end] for begin, end in pairwise(bounds)]
