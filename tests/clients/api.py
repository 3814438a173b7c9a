"""What the tests ask of every Kafka client, whatever language it is written in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Headers = tuple[tuple[str, bytes | None], ...]

TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
GROUP_ID_NOT_FOUND = 69
UNKNOWN_TOPIC_OR_PARTITION = 3

LARGEST = 8 << 20
"""Bytes of the largest request that producers make; what a topic takes is another matter."""
EARLIEST = "earliest"
LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Rec:
    """A record to write. ``timestamp`` is in ms since 1970; None: the client stamps it."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Got(Rec):
    """A record as read."""

    partition: int = 0
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Shares:
    """Who held which partitions of a group of two members: while both were there, and after the first had left."""

    first: frozenset[int]
    second: frozenset[int]
    after: frozenset[int]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as the admin client of some library describes it; ``state`` is Kafka's name, such as Stable."""

    state: str
    members: int = 0


class ClientError(Exception):
    """The broker refused; ``code`` is the protocol's error code."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(f"error {code}: {message}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a library can do at all, so that a test is made only for what it has."""

    codecs: frozenset[str] = frozenset({"none", "gzip", "snappy", "lz4", "zstd"})
    own_timestamps: bool = True
    acknowledged_offsets: bool = True  # produce tells them
    binary_everywhere: bool = True  # any bytes as key, value and header value, and headers per record
    null_headers: bool = True  # can write a header without a value
    void_records: bool = True  # can write a record with neither key nor value
    ordered_headers: bool = True  # keeps the order of headers of one name among others
    config_errors: bool = True  # passes errors of DescribeConfigs on
    asks_without_creating: bool = True  # its metadata requests forbid the creation of what they ask for
    admin: frozenset[str] = field(default_factory=frozenset)
    group: bool = True
    shares: bool = True  # two members can be run side by side
    idempotence: bool = True
    transactions: bool = False
    new_group_protocol: bool = False  # KIP-848


ALL_ADMIN = frozenset(
    {
        "create_topic",
        "delete_topic",
        "topics",
        "partition_count",
        "config",
        "set_config",
        "add_partitions",
        "delete_records",
        "offset",
        "groups",
        "describe_group",
        "committed",
        "delete_group",
    }
)


class Client(ABC):
    """One library, talking to one broker. Methods block; each gives up after a minute with an exception of its own."""

    name: str
    abilities: Abilities

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @abstractmethod
    def produce(
        self, topic: str, partition: int, records: Sequence[Rec], *, codec: str = "none", idempotent: bool = False
    ) -> list[int]:
        """Write with acks=all and return the acknowledged offsets (empty when the library does not tell them)."""

    @abstractmethod
    def consume(self, topic: str, counts: Mapping[int, int], *, starts: Mapping[int, int] | None = None) -> list[Got]:
        """Read ``counts[partition]`` records of each partition, by assignment, from the earliest or ``starts``."""

    def consume_group(self, group: str, topic: str, count: int, *, protocol: str = "classic") -> list[Got]:
        """Join, read exactly ``count`` records from the committed or earliest position, commit, leave."""
        raise NotImplementedError

    def share(self, group: str, topic: str, partitions: int, *, protocol: str = "classic") -> Shares:
        """Let two members share the partitions, then let the first leave."""
        raise NotImplementedError

    def transact(self, topic: str, transactional_id: str, rounds: Sequence[tuple[bool, Sequence[Rec]]]) -> None:
        """Write each round to partition 0 in a transaction of its own and commit (True) or abort it."""
        raise NotImplementedError

    def consume_committed(self, topic: str, count: int) -> list[Got]:
        """Read ``count`` records of partition 0 with isolation read_committed."""
        raise NotImplementedError

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        raise NotImplementedError

    def topics(self) -> list[str]:
        raise NotImplementedError

    def partition_count(self, topic: str) -> int:
        raise NotImplementedError

    def config(self, topic: str) -> dict[str, str | None]:
        """All configuration entries of the topic, defaults included."""
        raise NotImplementedError

    def set_config(self, topic: str, values: Mapping[str, str]) -> None:
        raise NotImplementedError

    def add_partitions(self, topic: str, total: int) -> None:
        raise NotImplementedError

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        raise NotImplementedError

    def offset(self, topic: str, partition: int, at: str | int) -> int:
        """Offset of EARLIEST, of LATEST, or of the first record with a timestamp (ms) >= ``at``; -1: none."""
        raise NotImplementedError

    def groups(self) -> list[str]:
        raise NotImplementedError

    def describe_group(self, group: str) -> GroupState:
        raise NotImplementedError

    def committed(self, group: str, topic: str, partition: int) -> int:
        """Committed offset; -1: none."""
        raise NotImplementedError

    def delete_group(self, group: str) -> None:
        raise NotImplementedError
