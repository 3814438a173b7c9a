"""Partitions of a topic and how they descend from one another (docs/design.md, "Partitions that split").

A partition is active until it is sealed, which is for good. One step of the catalog seals partitions and makes their
children. Each such step, and each that only adds partitions, begins a new epoch of the topic. Parents are not stored:
the children of a partition are the partitions that were made in the epoch in which it was sealed and that share keys
with it. So stored data cannot contradict itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from bridges.errors import LogError

KEY_BITS = 128
KEY_SPACE = 1 << KEY_BITS
"""Number of steps in the interval [0, 1)."""
_STORED = KEY_BITS // 8 + 1
_MURMUR_MASK = 0xFFFFFFFF
_MURMUR_M = 0x5BD1E995
_MURMUR_SEED = 0x9747B28C


class InvalidKeyRange(LogError):
    """A range of keys is empty, outside [0, 1), or finer than can be stored exactly."""


class InvalidChange(LogError):
    """Partitions cannot be sealed and made like this."""


class KeyRange(Struct, frozen=True):
    """Keys from ``low`` to below ``high``, in steps of 2**-128 of [0, 1). Raises InvalidKeyRange.

    Bounds are never rounded. YDB's bounds have at most 16 bytes, which is this resolution. Pravega's bounds are
    doubles, and every double from 2**-76 on is a multiple of a step. Finer bounds are refused.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= KEY_SPACE:
            raise InvalidKeyRange(f"[{self.low}, {self.high}) is no range of keys within [0, {KEY_SPACE})")

    def __str__(self) -> str:
        low, high = self.doubles
        return f"[{low!r}, {high!r})"

    @classmethod
    def of_doubles(cls, low: float, high: float) -> KeyRange:
        """Return the range between two fractions of 1, as Pravega sends them. Raises InvalidKeyRange."""
        return cls(_exactly(low), _exactly(high))

    @property
    def doubles(self) -> tuple[float, float]:
        """Return the bounds as fractions of 1: the arguments of :meth:`of_doubles`, otherwise the nearest doubles."""
        return self.low / KEY_SPACE, self.high / KEY_SPACE

    @property
    def byte_strings(self) -> tuple[bytes, bytes]:
        """Return the bounds as 16 bytes each, empty where the range is open."""
        low = self.low.to_bytes(KEY_BITS // 8) if self.low else b""
        return low, self.high.to_bytes(KEY_BITS // 8) if self.high < KEY_SPACE else b""

    def overlaps(self, other: KeyRange) -> bool:
        """Return whether the two ranges share a key."""
        return self.low < other.high and other.low < self.high

    @property
    def stored(self) -> tuple[bytes, bytes]:
        """Return the bounds as the database keeps them: 17 bytes each, which sort like the numbers."""
        return self.low.to_bytes(_STORED), self.high.to_bytes(_STORED)

    @classmethod
    def from_stored(cls, low: bytes, high: bytes) -> KeyRange:
        """Return the range with these :attr:`stored` bounds."""
        return cls(int.from_bytes(low), int.from_bytes(high))


WHOLE = KeyRange(0, KEY_SPACE)
"""All keys: the range of every partition that a Kafka request made."""


class PartitionInfo(Struct, frozen=True):
    """A partition, the SBP stream that holds it, and its place in the topic's lineage.

    ``index`` is its number, which never changes and is never reused. ``made_epoch`` and ``sealed_epoch`` are epochs of
    the topic; ``sealed_epoch`` is None while the partition is active. ``end`` is the offset after the last record of a
    sealed partition, None until its log has confirmed that no append can come any more. ``spent`` means that everything
    in a sealed partition was trimmed. ``beside``: the number of the partition whose owner also owns this one; -1: its
    own number decides.
    """

    index: int
    stream_id: int
    keys: KeyRange = WHOLE
    made_epoch: int = 0
    sealed_epoch: int | None = None
    end: int | None = None
    parents: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    spent: bool = False
    beside: int = -1

    @property
    def is_active(self) -> bool:
        """Return whether the partition takes appends."""
        return self.sealed_epoch is None

    @property
    def root(self) -> int:
        """Return the number that decides who owns the partition. Of the partitions with one root at most one is
        active."""
        return self.index if self.beside < 0 else self.beside

    def lived_in(self, epoch: int) -> bool:
        """Return whether the partition was active in an epoch of its topic."""
        return self.made_epoch <= epoch and (self.sealed_epoch is None or epoch < self.sealed_epoch)


class Takers:
    """The active partitions of a topic, found by key."""

    __slots__ = ("_lows", "_ranged", "partitions")

    def __init__(self, partitions: Iterable[PartitionInfo]) -> None:
        self.partitions = tuple(partitions)
        # Partial ranges do not overlap (:func:`check_change`).
        self._ranged = sorted((one for one in self.partitions if one.keys != WHOLE), key=lambda one: one.keys.low)
        self._lows = [one.keys.low for one in self._ranged]

    def at(self, key: int) -> PartitionInfo | None:
        """Return the partition whose range contains ``key``; None where all partitions have the whole range."""
        place = bisect_right(self._lows, key) - 1
        found = self._ranged[place] if place >= 0 else None
        return found if found is not None and key < found.keys.high else None


def related(partitions: Sequence[PartitionInfo]) -> list[PartitionInfo]:
    """Return the partitions with ``parents`` and ``children`` filled in."""
    made: dict[int, list[PartitionInfo]] = {}
    sealed: dict[int, list[PartitionInfo]] = {}
    for one in partitions:
        made.setdefault(one.made_epoch, []).append(one)
        if one.sealed_epoch is not None:
            sealed.setdefault(one.sealed_epoch, []).append(one)
    return [
        replace(
            one,
            parents=_sharing(one, sealed.get(one.made_epoch, ())),
            children=() if one.sealed_epoch is None else _sharing(one, made.get(one.sealed_epoch, ())),
        )
        for one in partitions
    ]


def active_heirs(partitions: Sequence[PartitionInfo], numbers: Iterable[int]) -> list[int]:
    """Return the numbers of the active partitions that descend from the partitions ``numbers``."""
    seen = set(numbers)
    waiting = list(seen)
    while waiting:
        children = seen.union(partitions[waiting.pop()].children) - seen
        seen |= children
        waiting += children
    return sorted(number for number in seen if partitions[number].is_active)


def check_change(partitions: Sequence[PartitionInfo], seal: Sequence[int], make: Sequence[KeyRange]) -> None:
    """Raise InvalidChange unless new partitions with the ranges ``make`` can replace the partitions numbered ``seal``.

    The latter must be active, and the new ranges must cover exactly the same keys without overlapping (Pravega's rule,
    docs/protocols/pravega.md, "Key ranges and epochs"). ``make`` may be empty when all active partitions are sealed:
    this ends the topic.
    """
    if not seal:
        raise InvalidChange("no partition to seal is named")
    if len(set(seal)) != len(seal):
        raise InvalidChange("a partition to seal is named twice")
    for number in seal:
        if not 0 <= number < len(partitions):
            raise InvalidChange(f"there is no partition {number}")
        if not partitions[number].is_active:
            raise InvalidChange(f"partition {number} is sealed already")
    if not make:
        if len(seal) < sum(one.is_active for one in partitions):
            raise InvalidChange("partitions are sealed without children only when all of them are")
        return
    ordered = sorted(make, key=lambda keys: keys.low)
    for one, after in pairwise(ordered):
        if one.overlaps(after):
            raise InvalidChange(f"the ranges {one} and {after} overlap")
    left, right = _joined(partitions[number].keys for number in seal), _joined(ordered)
    if left != right:
        raise InvalidChange(
            f"the new partitions would cover {_words(right)}, but those that are sealed cover {_words(left)}"
        )


def _joined(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the union of ``ranges`` as the fewest ranges, sorted."""
    joined: list[KeyRange] = []
    for one in sorted(ranges, key=lambda keys: keys.low):
        if joined and one.low <= joined[-1].high:
            joined[-1] = KeyRange(joined[-1].low, max(joined[-1].high, one.high))
        else:
            joined.append(one)
    return joined


def _words(ranges: Iterable[KeyRange]) -> str:
    return " and ".join(map(str, ranges))


def _sharing(one: PartitionInfo, others: Iterable[PartitionInfo]) -> tuple[int, ...]:
    return tuple(other.index for other in others if other.keys.overlaps(one.keys))


def _exactly(bound: float) -> int:
    if not 0 <= bound <= 1:
        raise InvalidKeyRange(f"{bound!r} is no fraction of 1")
    numerator, denominator = bound.as_integer_ratio()
    if denominator > KEY_SPACE:
        raise InvalidKeyRange(
            f"{bound!r} is finer than 2**-{KEY_BITS}, the least that ranges of keys are told apart by"
        )
    return numerator * (KEY_SPACE // denominator)


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of ``data`` with the seed that Kafka clients use, unsigned."""
    length = len(data)
    value = (_MURMUR_SEED ^ length) & _MURMUR_MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MURMUR_M & _MURMUR_MASK
        word = (word ^ (word >> 24)) * _MURMUR_M & _MURMUR_MASK
        value = (value * _MURMUR_M & _MURMUR_MASK) ^ word
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * _MURMUR_M & _MURMUR_MASK
    value = (value ^ (value >> 13)) * _MURMUR_M & _MURMUR_MASK
    return value ^ (value >> 15)


def choose_partition(key: bytes, partitions: int) -> int:
    """Return the partition of ``key``, as the default partitioner of Kafka's own client chooses it."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
