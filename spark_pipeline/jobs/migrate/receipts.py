"""Receipts of a migration's copies, one per line in an append-only file.

A receipt says that a range of offsets is durable at the target, and has the digest of the copied batches. Each receipt
names its plan. A restarted migration copies the offsets that its plan has and its receipts lack.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.ranges import TopicPartition


class ReceiptsError(PipelineError):
    """The file of receipts is damaged, or belongs to another plan."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that the offsets ``[start, end)`` of a partition are at the target, as ``batches`` of ``bytes`` in all.

    ``digest`` is the CRC-32C of all batches in order, without their leader epochs (see
    :func:`spark_pipeline.core.kafka_batches.digest`). ``epoch`` is the migration's run, ``seconds`` the duration of the
    copy, ``at_ms`` the time when it was done.
    """

    plan: str
    epoch: int
    topic: str
    partition: int
    start: int
    end: int
    batches: int
    bytes: int
    digest: int
    seconds: float
    at_ms: int

    @property
    def of(self) -> TopicPartition:
        """Return the partition."""
        return TopicPartition(self.topic, self.partition)


class Receipts:
    """The receipts of one plan; thread-safe within one process. ``writes``: this process may add receipts."""

    def __init__(self, path: Path, plan: str, *, writes: bool = True) -> None:
        self._path = path
        self._plan = plan
        self._lock = threading.Lock()
        self.all: list[Receipt] = []
        self._latest: dict[TopicPartition, dict[int, Receipt]] = {}
        self._load(writes=writes)

    def _load(self, *, writes: bool) -> None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        whole, _, torn = data.rpartition(b"\n")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                receipt = Receipt(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise ReceiptsError(f"line {number} of {self._path} is no receipt: {error}") from error
            if receipt.plan != self._plan:
                raise ReceiptsError(f"{self._path} has receipts of another plan, {receipt.plan[:12]}")
            self._keep(receipt)
        if torn and writes:
            # The process died while it wrote this line: drop it, and copy its range again.
            with self._path.open("r+b") as file:
                file.truncate(len(data) - len(torn))

    def add(self, receipts: Iterable[Receipt]) -> None:
        """Add receipts; durable when this returns."""
        new = list(receipts)
        if not new:
            return
        text = "".join(json.dumps(asdict(one), separators=(",", ":")) + "\n" for one in new)
        with self._lock:
            with self._path.open("ab") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            for one in new:
                self._keep(one)

    def _keep(self, one: Receipt) -> None:
        self.all.append(one)
        self._latest.setdefault(one.of, {})[one.start] = one

    def of(self, part: TopicPartition) -> list[Receipt]:
        """Return a partition's receipts by offset; of several with the same start, only the latest."""
        return [one for _, one in sorted(self._latest.get(part, {}).items())]

    def reached(self, part: TopicPartition, start: int) -> int:
        """Return the offset up to which a partition's receipts cover everything from ``start`` on."""
        at = start
        for one in self.of(part):
            if one.start > at:
                break
            at = max(at, one.end)
        return at

    @property
    def bytes(self) -> int:
        """Return the bytes of all copied batches."""
        return sum(one.bytes for one in self.all)
