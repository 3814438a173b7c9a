"""A task's and a driver's side of the sink: what is asked of a node so that a batch of a query is written exactly once.

See ``spark_pipeline.node.writes`` for what the node does with it. Raises NodeError whatever is asked.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from bridges.formats.records import Buffer
from spark_pipeline.core.kafka_batch import EncodedBatch
from spark_pipeline.core.node_client import NodeClient, NodeError

GONE = "AttemptGone"
"""Kind of the refusal of an attempt that is not open."""
_HEAD_ROOM = 64 * 1024
"""Bytes of a request that are left for its head."""
_VISIBLE_S = 60.0
_BATCHES = 500
"""Batches of one request."""


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """A batch of a query: what is committed as one. ``query`` tells the query, over its restarts, from all others;
    ``once`` says that it has no other batch. ``target``: the topic of all rows, "" where each tells its own."""

    query: str
    number: int
    once: bool = False
    target: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """What an attempt of a task has written: what the driver names in its commit. ``attempt`` is None where nothing had
    to be written, since there was nothing or the batch was ``committed`` before; then ``records`` were left out.
    ``digest`` is the sum of their hashes modulo 2^64, since their order and their tasks may change."""

    attempt: tuple[int, int] | None
    records: int = 0
    size: int = 0
    committed: bool = False
    digest: int = 0


@dataclass(frozen=True, slots=True)
class TakesRecords:
    """The numbers of a topic's partitions that take records, and the most bytes that a batch may have there."""

    partitions: tuple[int, ...]
    batch_bytes: int


class SinkTask:
    """One attempt of a task. Not for several threads at a time; ``client`` is its own until it is finished or aborted.

    One request is under way while the next is filled, in a thread that is there only if there are several.
    """

    def __init__(
        self,
        client: NodeClient,
        batch: SinkBatch,
        task: int,
        *,
        timeout_ms: int,
        request_bytes: int,
        skip_lower: bool = False,
    ) -> None:
        """``timeout_ms``: the silence after which the node aborts the batch; ``request_bytes``: most of a request;
        ``skip_lower``: a batch that is lower than the last one is left out, rather than refused."""
        self._client = client
        self._batch = batch
        self._task = task
        self._timeout_ms = timeout_ms
        self._skip_lower = skip_lower
        self._most = request_bytes - _HEAD_ROOM
        self._attempt: tuple[int, int] | None = None
        self._sequences: dict[tuple[str, int], int] = {}
        self._records = self._size = 0
        self._waiting: list[tuple[str, int, EncodedBatch]] = []
        self._waiting_bytes = 0
        self._sender: ThreadPoolExecutor | None = None
        self.told: Mapping[str, TakesRecords] = {}
        self._under_way: tuple[list[tuple[str, int, EncodedBatch]], Future[None]] | None = None

    def begin(self, topics: Sequence[str] = ()) -> bool:
        """Begin the attempt; False when the batch is committed already, so that there is nothing to be written.

        Of ``topics``, ten at most, :attr:`told` has afterwards what the node has told, which may not be of all.
        """
        asked = {
            **_named(self._batch),
            "topics": list(topics),
            "skip_lower": self._skip_lower,
            "task": self._task,
            "nonce": uuid.uuid4().hex,
            "timeout_ms": self._timeout_ms,
        }
        begun = self._client.post("/v1/sink/begin", asked)
        if begun["committed"]:
            return False
        self._attempt = begun["producer"], begun["epoch"]
        self.told = {name: TakesRecords(tuple(active), most) for name, (active, most) in begun["topics"].items()}
        return True

    def add(self, topic: str, partition: int, batch: EncodedBatch) -> None:
        """Write a batch, now or with others that follow. Raises NodeError of what was added before."""
        if self._waiting and (self._waiting_bytes + batch.size > self._most or len(self._waiting) >= _BATCHES):
            self._settle()
            if self._sender is None:
                self._sender = ThreadPoolExecutor(1, thread_name_prefix="sink")
            waiting = self._taken()
            self._under_way = waiting, self._sender.submit(self._deliver, waiting)
        self._waiting.append((topic, partition, batch))
        self._waiting_bytes += batch.size

    def flush(self) -> None:
        """Return when all that was added is durable."""
        self._settle()
        waiting = self._taken()
        if waiting:
            self._deliver(waiting)
            self._count(waiting)

    def _taken(self) -> list[tuple[str, int, EncodedBatch]]:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return waiting

    def _settle(self) -> None:
        """Return when no request is under way. Raises what it raised."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way[1].result()
            self._count(under_way[0])

    def _count(self, durable: Sequence[tuple[str, int, EncodedBatch]]) -> None:
        for topic, partition, batch in durable:
            place = topic, partition
            self._sequences[place] = self._sequences.get(place, 0) + batch.count
            self._records += batch.count
            self._size += batch.size

    def _deliver(self, waiting: Sequence[tuple[str, int, EncodedBatch]]) -> None:
        assert self._attempt is not None, "begun first"
        try:
            self._send(waiting)
        except NodeError as error:
            # A node that was started again knows attempts that have written, and only those.
            if error.kind != GONE or self._records or not self.begin():
                raise
            self._send(waiting)

    def _send(self, waiting: Sequence[tuple[str, int, EncodedBatch]]) -> None:
        assert self._attempt is not None
        producer, epoch = self._attempt
        parts: list[Buffer] = []
        next_of = dict(self._sequences)
        for topic, partition, batch in waiting:
            sequence = next_of.get((topic, partition), 0)
            next_of[topic, partition] = sequence + batch.count
            parts += [batch.header(producer, epoch, sequence), batch.body]
        told = [[topic, partition, batch.size] for topic, partition, batch in waiting]
        head = json.dumps({"producer": producer, "epoch": epoch, "batches": told}).encode()
        path = f"/v1/sink/append?query={quote(self._batch.query, safe='')}"
        self._client.post_bytes(path, [len(head).to_bytes(4) + head, *parts])

    def abort(self, patience: float) -> None:
        """Nothing of the attempt will be named in a commit; asks for ``patience`` seconds at most."""
        with suppress(NodeError):
            self._settle()  # it would be in the way on the connection
        self._close()
        if self._attempt is not None:
            asked = {**_named(self._batch), "attempts": [self._attempt]}
            self._client.post("/v1/sink/abort", asked, patience=patience)

    def finish(self, digest: int = 0) -> Written:
        """Everything is written; what the driver needs to commit it. ``digest`` is of all rows."""
        self.flush()
        self._close()
        return Written(self._attempt, self._records, self._size, digest=digest)

    def _close(self) -> None:
        if self._sender is not None:
            self._sender.shutdown()
            self._sender = None


class SinkDriver:
    """What the driver of a query does with its batches."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client

    def commit(self, batch: SinkBatch, written: Sequence[Written], *, compare: bool = True) -> bool:
        """Commit what the tasks have written, unless the batch was committed before; whether it had been.

        ``compare``: a batch that was committed with other rows is refused. Once it is decided, which cannot be undone,
        this waits a while until readers see it: whoever reads after a write finds what was written.
        """
        asked = {**_named(batch), "attempts": _attempts(written), "once": batch.once}
        if compare:
            digest = sum(one.digest for one in written) % (1 << 64)
            asked |= {"rows": sum(one.records for one in written), "digest": f"{digest:016x}"}
        answer = self._client.post("/v1/sink/commit", asked)
        already: bool = answer["already"]
        until = time.monotonic() + _VISIBLE_S
        while not answer["visible"] and time.monotonic() < until:
            answer = self._client.post("/v1/sink/commit", asked)
        return already

    def abort(self, batch: SinkBatch, written: Sequence[Written] | None = None) -> bool:
        """Abort what tasks have written, all of them or those named, unless the batch is committed; whether it is."""
        attempts = None if written is None else _attempts(written)
        committed: bool = self._client.post("/v1/sink/abort", {**_named(batch), "attempts": attempts})["committed"]
        return committed


def _named(batch: SinkBatch) -> dict[str, Any]:
    return {"query": batch.query, "target": batch.target, "batch": batch.number}


def _attempts(written: Sequence[Written]) -> list[tuple[int, int]]:
    return [one.attempt for one in written if one.attempt is not None]
