"""The client side of the sink, for tasks and drivers: the requests that write a query's batch exactly once.

``spark_pipeline.node.sinks.writes`` is the node's side. Every method that sends a request may raise NodeError.
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
from spark_pipeline.core.client.node_client import NodeClient, NodeError
from spark_pipeline.core.encoding.kafka import EncodedBatch

GONE = "AttemptGone"
"""Kind of the error for an attempt that is not open."""
_HEAD_ROOM = 64 * 1024
"""Bytes of a request that are reserved for its head."""
_VISIBLE_S = 60.0
_BATCHES = 500
"""Most batches of one request."""


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """A batch of a query, the unit of a commit.

    ``query`` identifies the query across its restarts; ``once`` says that the query has no other batch. ``target`` is
    the topic of all rows, "" if each row names its own.
    """

    query: str
    number: int
    once: bool = False
    target: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a task's attempt, which the driver names in its commit.

    ``attempt`` is None if nothing had to be written, because there were no rows or the batch was ``committed`` before;
    then ``records`` counts the rows left out. ``digest`` is the sum of the rows' hashes modulo 2^64, because a rerun
    may change their order and their tasks.
    """

    attempt: tuple[int, int] | None
    records: int = 0
    size: int = 0
    committed: bool = False
    digest: int = 0


@dataclass(frozen=True, slots=True)
class TakesRecords:
    """The numbers of a topic's partitions that take records, and the most bytes of a batch there."""

    partitions: tuple[int, ...]
    batch_bytes: int


class SinkTask:
    """One attempt of a task. It is not thread-safe; ``client`` is its own until it is finished or aborted.

    One request is in flight while the next is filled. The thread that sends exists only if there is more than one
    request.
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
        """``timeout_ms``: silence after which the node aborts the batch; ``request_bytes``: most bytes of a request;
        ``skip_lower``: a batch lower than the last committed one is left out instead of refused.
        """
        self._client = client
        self._batch = batch
        self._task = task
        self._timeout_ms = timeout_ms
        self._skip_lower = skip_lower
        self._most = request_bytes - _HEAD_ROOM
        self.attempt: tuple[int, int] | None = None
        self._sequences: dict[tuple[str, int], int] = {}
        self._records = self._size = 0
        self._waiting: list[tuple[str, int, EncodedBatch]] = []
        self._waiting_bytes = 0
        self._sender: ThreadPoolExecutor | None = None
        self.told: Mapping[str, TakesRecords] = {}
        self._under_way: tuple[list[tuple[str, int, EncodedBatch]], Future[None]] | None = None

    def begin(self, topics: Sequence[str] = ()) -> bool:
        """Begin the attempt; return False if the batch is already committed, so that nothing has to be written.

        Afterwards :attr:`told` has the node's facts about ``topics`` (at most ten), possibly not about all.
        """
        asked = {
            **_name_batch(self._batch),
            "topics": list(topics),
            "skip_lower": self._skip_lower,
            "task": self._task,
            "nonce": uuid.uuid4().hex,
            "timeout_ms": self._timeout_ms,
        }
        begun = self._client.post("/v1/sink/begin", asked)
        if begun["committed"]:
            return False
        self.attempt = begun["producer"], begun["epoch"]
        self.told = {name: TakesRecords(tuple(active), most) for name, (active, most) in begun["topics"].items()}
        return True

    def add(self, topic: str, partition: int, batch: EncodedBatch) -> None:
        """Write a batch, at once or together with later ones. Raises NodeError for batches added before."""
        if self._waiting and (self._waiting_bytes + batch.size > self._most or len(self._waiting) >= _BATCHES):
            self._settle()
            if self._sender is None:
                self._sender = ThreadPoolExecutor(1, thread_name_prefix="sink")
            waiting = self._take_waiting()
            self._under_way = waiting, self._sender.submit(self._deliver, waiting)
        self._waiting.append((topic, partition, batch))
        self._waiting_bytes += batch.size

    def flush(self) -> None:
        """Return when all added batches are durable."""
        self._settle()
        waiting = self._take_waiting()
        if waiting:
            self._deliver(waiting)
            self._count(waiting)

    def _take_waiting(self) -> list[tuple[str, int, EncodedBatch]]:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return waiting

    def _settle(self) -> None:
        """Return when no request is in flight. Raises the request's error."""
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
        assert self.attempt is not None, "begun first"
        try:
            self._send(waiting)
        except NodeError as error:
            # A restarted node knows only the attempts that have written something. This one has not: begin again.
            if error.kind != GONE or self._records or not self.begin():
                raise
            self._send(waiting)

    def _send(self, waiting: Sequence[tuple[str, int, EncodedBatch]]) -> None:
        assert self.attempt is not None
        producer, epoch = self.attempt
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
        """Abort the attempt: no commit will name it. The request is retried for at most ``patience`` seconds."""
        with suppress(NodeError):
            self._settle()  # a request in flight would occupy the connection
        self._close()
        if self.attempt is not None:
            asked = {**_name_batch(self._batch), "attempts": [self.attempt]}
            self._client.post("/v1/sink/abort", asked, patience=patience)

    def finish(self, digest: int = 0) -> Written:
        """Write the rest and return the result for the driver's commit. ``digest`` is of all rows."""
        self.flush()
        self._close()
        return Written(self.attempt, self._records, self._size, digest=digest)

    def _close(self) -> None:
        if self._sender is not None:
            self._sender.shutdown()
            self._sender = None


class SinkDriver:
    """The driver's requests for the batches of a query."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client

    def commit(self, batch: SinkBatch, written: Sequence[Written], *, compare: bool = True) -> bool:
        """Commit the tasks' attempts, unless the batch was committed before; return whether it was.

        ``compare``: the node refuses a batch that was committed with other rows. After the irrevocable decision this
        waits up to a minute until readers see the batch, so that a read after a write finds its rows.
        """
        asked = {**_name_batch(batch), "attempts": _attempts(written), "once": batch.once}
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
        """Abort all attempts of a batch, or those in ``written``, unless it is committed; return whether it is."""
        attempts = None if written is None else _attempts(written)
        committed: bool = self._client.post("/v1/sink/abort", {**_name_batch(batch), "attempts": attempts})["committed"]
        return committed


def _name_batch(batch: SinkBatch) -> dict[str, Any]:
    return {"query": batch.query, "target": batch.target, "batch": batch.number}


def _attempts(written: Sequence[Written]) -> list[tuple[int, int]]:
    return [one.attempt for one in written if one.attempt is not None]
