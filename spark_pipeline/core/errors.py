"""What can go wrong between the pipeline and the systems it reads and writes, as exceptions that say what to do."""

from __future__ import annotations


class PipelineError(Exception):
    """The root of what the pipeline raises on purpose. Its text is a sentence for whoever started the job."""


class FoundDifferences(PipelineError):
    """A comparison ran to its end, and what it compared is not the same."""


class OptionError(PipelineError, ValueError):
    """An option has a value that it cannot have, or may not be given together with another."""


class EndpointUnavailable(PipelineError):
    """The system does not answer, or answers that it cannot at present: trying again may help."""


class UnknownTopic(PipelineError):
    """There is no such topic, or it has no such partition."""


class OffsetsGone(PipelineError):
    """Offsets that were to be read are no longer kept: ``start`` is where the partition begins by now."""

    def __init__(self, topic: str, partition: int, wanted: int, start: int) -> None:
        super().__init__(topic, partition, wanted, start)  # the arguments, so that it can be pickled
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.start = start

    def __str__(self) -> str:
        return f"offset {self.wanted} of {self.topic}-{self.partition} is gone: the partition begins at {self.start}"


class UnreadableBatch(PipelineError):
    """A stored batch cannot be read as its format says: it is damaged, or its writer made it so.

    What was read before it has been given already. It holds the offsets ``[offset, end)`` as far as is known: behind it
    may be read on.
    """

    def __init__(self, topic: str, partition: int, offset: int, reason: str, end: int | None = None) -> None:
        super().__init__(topic, partition, offset, reason, end)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason
        self.end = offset + 1 if end is None else max(end, offset + 1)

    def __str__(self) -> str:
        return f"the batch at offset {self.offset} of {self.topic}-{self.partition} cannot be read: {self.reason}"


class Fenced(PipelineError):
    """Another run of the migration has taken the topic, or it was handed over: this run may not go on."""


class Conflict(PipelineError):
    """The target holds something else at ``offset`` than what the source has there (-1: not about one offset)."""

    def __init__(self, message: str, offset: int = -1) -> None:
        super().__init__(message, offset)
        self.offset = offset

    def __str__(self) -> str:
        return str(self.args[0])
