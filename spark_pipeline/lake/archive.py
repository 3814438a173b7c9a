"""An archive: a directory with a table of records, and a description with the choices made when it was created.

    archive.json     topics and their partitions, the kind of the table; a process that changes it holds the lock of
                     archive.json.lock, where that is a file of this machine
    records/         the table
    state/           Iceberg: the catalog, unless another one is configured

Earlier versions could decode values as they archived them, and put records that could not be decoded into
``dead_letters/``. Such an archive can be read, compared and maintained, but takes no more records. Their archives of
plain files become Delta tables of these files when they are opened (:mod:`spark_pipeline.lake.former`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from spark_pipeline.core.errors import OptionError, PipelineError
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.lake.layout import FILE_BYTES, PARTITIONING, Crash, FileWriter, no_crash, schema_of
from spark_pipeline.lake.store import Store
from spark_pipeline.lake.table import Table

DESCRIPTION = "archive.json"
KINDS = ("delta", "iceberg")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Description:
    """The choices made when an archive is created, and the partitions that it has had so far.

    ``catalog`` and ``name`` are of Iceberg's tables; an empty ``catalog`` is one in SQLite, in the archive itself.
    ``begun``: "topic-partition" -> the offset at which archiving began. ``expired_ms``: records with earlier timestamps
    were deleted by expiry. ``decoding``: how an earlier version decoded values.
    """

    kind: str = "delta"
    partitioning: str = "day"
    decoding: Mapping[str, Any] | None = None
    catalog: str = ""
    name: str = "anabranch.records"
    topics: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    begun: Mapping[str, int] = field(default_factory=dict)
    expired_ms: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"{self.kind!r} is no kind of table: {', '.join(KINDS)}")
        if self.partitioning not in PARTITIONING:
            raise OptionError(f"{self.partitioning!r} is no partitioning: {', '.join(PARTITIONING)}")
        if "." not in self.name:
            raise OptionError(f"{self.name!r} is no name of a table: namespace.table")

    def encode(self) -> bytes:
        """Return the content of the description's file."""
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=1, sort_keys=True).encode()

    @classmethod
    def decode(cls, kept: bytes) -> Description:
        """Parse the content of the description's file. Raises PipelineError if this version cannot read it."""
        try:
            told: dict[str, Any] = json.loads(kept)
            if told.pop("version") != _VERSION:
                raise PipelineError("the archive was made by a later version")
            topics = {name: tuple(numbers) for name, numbers in told.pop("topics").items()}
            return cls(**told, topics=topics)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PipelineError(f"the archive's {DESCRIPTION} cannot be read: {error!r}") from error

    @property
    def parts(self) -> list[TopicPartition]:
        """Return every partition that was ever archived, or is about to be."""
        return [TopicPartition(topic, number) for topic, numbers in sorted(self.topics.items()) for number in numbers]

    def decided(self) -> Description:
        """Return the choices that may not change once there are records."""
        return replace(self, topics={}, begun={}, expired_ms=None)


@dataclass(slots=True)
class Archive:
    """An open archive. ``dead_letters`` is None if values are stored as written."""

    store: Store
    description: Description
    crash: Crash = no_crash
    records: Table = field(init=False)
    dead_letters: Table | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.records = self._table("records")
        if self.description.decoding is not None:
            self.dead_letters = self._table("dead_letters")

    @staticmethod
    def is_there(place: str) -> bool:
        """Return whether there is an archive at a path or URL."""
        return Store.at(place).read_bytes(DESCRIPTION) is not None

    @classmethod
    def open(cls, place: str, crash: Crash = no_crash) -> Archive:
        """Open the archive at a path or URL. Raises PipelineError if there is none."""
        store = Store.at(place)
        kept = store.read_bytes(DESCRIPTION)
        if kept is None:
            raise PipelineError(f"there is no archive at {store.url}")
        return cls(store, _read_description(store, kept, crash), crash)

    @classmethod
    def make(cls, place: str, wanted: Description, crash: Crash = no_crash) -> Archive:
        """Open the archive at a path or URL, or create it. Raises OptionError if it differs from ``wanted``."""
        store = Store.at(place)
        kept = store.read_bytes(DESCRIPTION)
        if kept is None:
            store.make()
            with store.alone(DESCRIPTION):
                kept = store.read_bytes(DESCRIPTION)  # another process may have made it meanwhile
                if kept is None:
                    kept = wanted.encode()
                    store.write_bytes(DESCRIPTION, kept)
        found = _read_description(store, kept, crash)
        if found.decoding is not None:
            raise OptionError(
                f"values of the archive at {store.url} were decoded by an earlier version: it takes no more records;"
                " archive to another place, and decode by a query"
            )
        if found.decided() != wanted.decided():
            raise OptionError(
                f"the archive at {store.url} was made with other options: {found.decided()}; nothing was changed"
            )
        archive = cls(store, found, crash)
        archive.make_tables()
        return archive

    def make_tables(self) -> None:
        for table in self.tables.values():
            table.make()

    @property
    def tables(self) -> dict[str, Any]:
        """Return the tables by their directories' names."""
        found: dict[str, Any] = {"records": self.records}
        if self.dead_letters is not None:
            found["dead_letters"] = self.dead_letters
        return found

    def writer(self, part: TopicPartition, file_bytes: int = FILE_BYTES) -> FileWriter:
        """Return a writer of files for the table; a commit adds them to the table later."""
        return FileWriter(
            self.records.store,
            part.topic,
            part.partition,
            schema_of(),
            self.description.partitioning,
            file_bytes,
            # Iceberg's library cannot express other times, and a file there has one value of each partition.
            within_calendar=self.description.kind == "iceberg",
        )

    def _table(self, name: str) -> Table:
        description, place, schema = self.description, self.store.below(name), schema_of()
        if description.kind == "delta":
            from spark_pipeline.lake.delta import DeltaRecords

            return DeltaRecords(place, schema, description.partitioning, self._crash_of(name))
        state = self.store.below("state")
        from spark_pipeline.lake.iceberg import IcebergRecords

        catalog = description.catalog
        if not catalog:
            if not self.store.local:
                raise OptionError("Iceberg's catalog cannot lie in S3: name one, as sqlite:////path/catalog.db")
            state.make()
            catalog = f"sqlite:///{state.path}/catalog.db"
        table = description.name if name == "records" else f"{description.name}_{name}"
        return IcebergRecords(place, table, catalog, schema, description.partitioning, self._crash_of(name))

    def _crash_of(self, name: str) -> Crash:
        return lambda step: self.crash(f"{name}:{step}")

    def learn(self, parts: Mapping[str, tuple[int, ...]]) -> None:
        """Store the names of partitions before any of their records are archived."""

        def add_parts(now: Description) -> Description:
            names = {*now.topics, *parts}
            both = {name: tuple(sorted({*now.topics.get(name, ()), *parts.get(name, ())})) for name in names}
            return replace(now, topics=both)

        self._change(add_parts)

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Store the start of partitions that are new to the archive, before their records are archived.

        Raises PipelineError if another process has stored another start since the description was read: the archive
        would claim one start, and have records from the other on.
        """
        told = {str(part): offset for part, offset in starts.items()}
        seen = self.description.begun

        def add_starts(now: Description) -> Description:
            for part, offset in told.items():
                if now.begun.get(part) not in (seen.get(part), offset):
                    raise PipelineError(
                        f"{part} is to begin at offset {offset}, and another job has just had it begin at"
                        f" {now.begun[part]}; nothing was changed"
                    )
            return replace(now, begun={**now.begun, **told})

        self._change(add_starts)

    def expired(self, before_ms: int) -> None:
        """Store the time before which records were deleted."""
        self._change(lambda now: replace(now, expired_ms=max(before_ms, now.expired_ms or before_ms)))

    def _change(self, change: Callable[[Description], Description]) -> None:
        """Apply ``change`` to the stored description, together with other processes' changes; ``change`` may run twice.

        S3 has no lock: there the change is written until it is read back. A process that has read before, and writes
        after that, still removes it.
        """
        with self.store.alone(DESCRIPTION):
            while True:
                kept = self.store.read_bytes(DESCRIPTION)
                now = Description.decode(kept) if kept is not None else self.description
                self.description = change(now)
                if kept is not None and self.description == now:
                    return
                self.store.write_bytes(DESCRIPTION, self.description.encode())


def _read_description(store: Store, kept: bytes, crash: Crash) -> Description:
    """Return the description in an archive's file, after converting an earlier version's archive."""
    from spark_pipeline.lake import former

    if former.is_plain(kept):
        with store.alone(DESCRIPTION):
            kept = store.read_bytes(DESCRIPTION) or kept
            if former.is_plain(kept):
                kept = former.as_delta(store, kept, crash)
                store.write_bytes(DESCRIPTION, kept)
    return Description.decode(kept)
