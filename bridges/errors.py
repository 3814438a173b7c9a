"""Errors of the shared log, in terms that every front can translate into its own protocol's errors."""

from __future__ import annotations

from collections.abc import Sequence

_NAMED = 1000
"""Records of a batch that a refusal names at most; the first ones tell the client enough."""


class LogError(Exception):
    """A partition log could not do what was asked. ``retriable``: whether the same request may succeed later."""

    retriable = False


class OutOfOrderSequence(LogError):
    """An idempotent producer skipped or repeated sequence numbers in a way that cannot be deduplicated."""


class UnknownProducer(OutOfOrderSequence):
    """An idempotent producer continues in a partition where it has never written, so its first batches are missing."""


class ProducerFenced(LogError):
    """A producer with a newer epoch has taken this producer's identity."""


class EventNumberConflict(LogError):
    """An append depends on its writer's last event number, which is another one: ``last`` (-1: none)."""

    def __init__(self, message: str, last: int) -> None:
        super().__init__(message)
        self.last = last


class AppendConditionFailed(LogError):
    """An append depends on the end of the log, which is elsewhere: at ``end_offset``, in bytes at ``end_position``.

    The position is set only for appends that depend on it (otherwise -1). It may lie a little before the end, where
    that sufficed for the refusal.
    """

    def __init__(self, message: str, end_offset: int, end_position: int = -1) -> None:
        super().__init__(message)
        self.end_offset = end_offset
        self.end_position = end_position


class AbortedNotAtHand(LogError):
    """The aborted transactions of a part of the log are not in memory; load them from the database first."""


class TooManyTransactions(LogError):
    """The partition remembers as many transactions as it may. New ones can begin when aborted ones have been
    trimmed.
    """


class OffsetOutOfRange(LogError):
    """The offset is below the log start or above the high watermark."""


class PositionTrimmed(OffsetOutOfRange):
    """The position in bytes lies below the log's start, which is at ``start``."""

    def __init__(self, message: str, start: int) -> None:
        super().__init__(message)
        self.start = start


class LogDeleted(LogError):
    """The partition's topic was deleted, or the node no longer serves it."""


class PartitionSealed(LogError):
    """The partition accepts no more appends. ``children``: the partitions that replace it; none if its topic ended."""

    def __init__(self, place: str, children: tuple[int, ...]) -> None:
        if children:
            numbers = ", ".join(map(str, children))
            words = f"it was split or merged, and its keys are now written to partition {numbers}"
        else:
            words = "its topic was ended"
        super().__init__(f"{place} is sealed and takes no more records: {words}")
        self.children = children


class TopicImporting(LogError):
    """A migration fills the topic from elsewhere. Until it hands the topic over, no other client may change its
    contents.
    """


class ImportFenced(LogError):
    """A migration writes to a topic that a later run has taken over, or that the migration does not own (any more)."""


class LogUnavailable(LogError):
    """The backend cannot serve the partition now. Its ownership will be acquired anew, and the request may be
    retried.
    """

    retriable = True


class TransactionsOpen(LogUnavailable):
    """The partition cannot be sealed yet: its open transactions still need their markers in its log."""


class NotOwner(LogUnavailable):
    """Another node owns the partition: ``node_id``, -1 while it has no owner."""

    def __init__(self, what: str, node_id: int) -> None:
        super().__init__(
            f"{what} is owned by node {node_id}" if node_id >= 0 else f"{what} has no owner yet; try again"
        )
        self.node_id = node_id


class PeerUnreachable(LogUnavailable):
    """Another node did not answer; it may or may not have done what it was asked to do."""


class GroupHeld(LogError):
    """Consumers of another protocol use the group: this front may not join it or change its positions."""


class CannotMove(LogError):
    """Ownership cannot be moved as requested: the node does not exist, or no node could take over."""


class StorageFull(LogError):
    """There is no disk space for the append; nothing was written."""

    retriable = True


class DataCorrupt(LogError):
    """Stored bytes do not match their checksum; they are never returned."""


class PositionLost(DataCorrupt):
    """The bytes at a position were declared lost. The log continues at ``offset`` and ``position``."""

    def __init__(self, message: str, offset: int, position: int) -> None:
        super().__init__(message)
        self.offset = offset
        self.position = position


class StillReadable(LogError):
    """The records to be skipped are readable, so skipping them would lose them."""


class BatchInvalid(LogError):
    """A batch is not well-formed in its format (lengths, counts, attributes)."""


class RecordInvalid(BatchInvalid):
    """The record at ``offset`` cannot be read. ``before``: the records before it in its batch, in the requested
    format.
    """

    def __init__(self, message: str, offset: int, before: bytes | bytearray | memoryview) -> None:
        super().__init__(message)
        self.offset = offset
        self.before = before


class BatchTooLarge(LogError):
    """The batch is larger than the backend can store in one piece."""


class BatchCorrupt(BatchInvalid):
    """A batch's checksum does not match its bytes."""


class RecordsRefused(BatchInvalid):
    """The topic refuses records of the batch: those at ``indexes``, of which at most the first 1,000 are named."""

    def __init__(self, message: str, indexes: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.indexes = list(indexes[:_NAMED])


class KeyMissing(RecordsRefused):
    """A record without a key, for a compacted topic."""


class TimeOutOfBounds(RecordsRefused):
    """A record's timestamp is further from the node's clock than the topic allows."""


class TopicInternal(LogError):
    """A protocol keeps its own state in the topic: no other client may change its contents."""


class CompressionUnsupported(BatchInvalid):
    """The batch names an unknown compression codec."""


class DecompressedTooLarge(BatchInvalid):
    """The decompressed batch would exceed its limit."""
