"""Failures of the shared log, in words every front can translate into its own protocol's errors."""

from __future__ import annotations

from collections.abc import Sequence

_NAMED = 1000
"""Records of one batch that a refusal names; the first tell the client what is wrong."""


class LogError(Exception):
    """A partition log could not do what was asked. ``retriable`` tells whether the same request may succeed later."""

    retriable = False


class OutOfOrderSequence(LogError):
    """An idempotent producer skipped or repeated sequence numbers in a way that cannot be deduplicated."""


class UnknownProducer(OutOfOrderSequence):
    """An idempotent producer goes on in a partition that was never written to, so its first batches are missing."""


class ProducerFenced(LogError):
    """A producer with a newer epoch has taken this producer's identity."""


class EventNumberConflict(LogError):
    """An append depends on its writer's last event number, and that is another one: ``last`` (-1: none)."""

    def __init__(self, message: str, last: int) -> None:
        super().__init__(message)
        self.last = last


class AppendConditionFailed(LogError):
    """An append depends on where the log ends, and that is elsewhere: at ``end_offset``, in bytes at ``end_position``.

    The position is told to those whose append depends on it (-1 to others); it may lie somewhat before the end, where
    that was known to be enough for the refusal.
    """

    def __init__(self, message: str, end_offset: int, end_position: int = -1) -> None:
        super().__init__(message)
        self.end_offset = end_offset
        self.end_position = end_position


class AbortedNotAtHand(LogError):
    """Which transactions were aborted in a part of a log is in the database only, and is to be loaded first."""


class TooManyTransactions(LogError):
    """The partition remembers as many transactions as it may; others can begin when aborted ones were trimmed."""


class OffsetOutOfRange(LogError):
    """The offset is below the log start or above the high watermark."""


class PositionTrimmed(OffsetOutOfRange):
    """The position in bytes lies below the log's start: at ``start``."""

    def __init__(self, message: str, start: int) -> None:
        super().__init__(message)
        self.start = start


class LogDeleted(LogError):
    """The partition's topic was deleted, or the node no longer serves it."""


class PartitionSealed(LogError):
    """The partition takes no more appends. ``children`` are the partitions that do instead, none if its topic ended."""

    def __init__(self, place: str, children: tuple[int, ...]) -> None:
        if children:
            numbers = ", ".join(map(str, children))
            words = f"it was split or merged, and its keys are now written to partition {numbers}"
        else:
            words = "its topic was ended"
        super().__init__(f"{place} is sealed and takes no more records: {words}")
        self.children = children


class TopicImporting(LogError):
    """A migration fills the topic from elsewhere: until it hands that over, nobody else may change what is in it."""


class ImportFenced(LogError):
    """A migration writes to a topic that a later run of it has taken, or that it does not own, or no longer."""


class LogUnavailable(LogError):
    """The backend cannot serve the partition now; ownership will be taken anew and the request may be repeated."""

    retriable = True


class TransactionsOpen(LogUnavailable):
    """The partition cannot be sealed yet: transactions are open there, and their markers belong into its log."""


class NotOwner(LogUnavailable):
    """Another node owns the partition: ``node_id``, -1 while nobody does."""

    def __init__(self, what: str, node_id: int) -> None:
        super().__init__(f"{what} is node {node_id}'s" if node_id >= 0 else f"{what} is nobody's at the moment")
        self.node_id = node_id


class PeerUnreachable(LogUnavailable):
    """Another node did not answer: whether it has done what it was asked for is unknown."""


class GroupHeld(LogError):
    """Another protocol's consumers use the group: it is not this front's to join, and its positions not to change."""


class CannotMove(LogError):
    """What nodes own cannot be moved as is asked: there is no such node, or nobody who could take it."""


class StorageFull(LogError):
    """There is no disk space for the append; nothing was written."""

    retriable = True


class DataCorrupt(LogError):
    """Stored bytes do not match their checksum; they are never handed out."""


class PositionLost(DataCorrupt):
    """The bytes at a position were declared lost. What comes behind them begins at ``offset`` and ``position``."""

    def __init__(self, message: str, offset: int, position: int) -> None:
        super().__init__(message)
        self.offset = offset
        self.position = position


class StillReadable(LogError):
    """What was to be skipped can be read, so skipping it would lose it."""


class BatchInvalid(LogError):
    """A batch of records does not form what its format claims (lengths, counts, attributes)."""


class RecordInvalid(BatchInvalid):
    """The record at ``offset`` cannot be read. ``before``: those before it in its batch, in the format asked for."""

    def __init__(self, message: str, offset: int, before: bytes | bytearray | memoryview) -> None:
        super().__init__(message)
        self.offset = offset
        self.before = before


class BatchTooLarge(LogError):
    """The batch is larger than the backend can store in one piece."""


class BatchCorrupt(BatchInvalid):
    """A batch's checksum does not match its bytes."""


class RecordsRefused(BatchInvalid):
    """Records of the batch are not what its topic takes: those at ``indexes``, as far as they are named."""

    def __init__(self, message: str, indexes: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.indexes = list(indexes[:_NAMED])


class KeyMissing(RecordsRefused):
    """A record without a key, for a topic that is to be compacted."""


class TimeOutOfBounds(RecordsRefused):
    """A record's timestamp is further from the node's clock than the topic allows."""


class TopicInternal(LogError):
    """A protocol keeps something of its own in the topic: nobody else may change what is in it."""


class CompressionUnsupported(BatchInvalid):
    """The batch names a compression codec nobody knows."""


class DecompressedTooLarge(BatchInvalid):
    """Decompressing would exceed the limit set for it."""
