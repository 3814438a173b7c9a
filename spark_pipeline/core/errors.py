"""Failures between the pipeline and the systems it reads and writes, as exceptions whose text says what to do."""

from __future__ import annotations


class PipelineError(Exception):
    """The root of the exceptions that the pipeline raises on purpose. The text is a sentence for the job's user."""


class FoundDifferences(PipelineError):
    """A comparison ran to its end and found differences."""


class OptionError(PipelineError, ValueError):
    """An option has an invalid value, or excludes another option that is given."""


class EndpointUnavailable(PipelineError):
    """The system does not answer, or is not ready: a retry may help."""


class UnknownTopic(PipelineError):
    """The topic, or its partition, does not exist."""


class OffsetsGone(PipelineError):
    """The requested offsets are no longer kept; ``start`` is the partition's log start by now."""

    def __init__(self, topic: str, partition: int, wanted: int, start: int) -> None:
        super().__init__(topic, partition, wanted, start)  # pickle needs the arguments
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.start = start

    def __str__(self) -> str:
        return f"offset {self.wanted} of {self.topic}-{self.partition} is gone: the partition begins at {self.start}"


class UnreadableBatch(PipelineError):
    """A stored batch does not match its format: it is damaged, or its writer made it so.

    The records before it have already been returned. As far as is known it holds the offsets ``[offset, end)``; reading
    may go on behind it.
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
    """Another run of the migration has taken the topic, or the topic was handed over: this run must stop."""


class Conflict(PipelineError):
    """The target and the source hold different data at ``offset`` (-1: the conflict is not about one offset)."""

    def __init__(self, message: str, offset: int = -1) -> None:
        super().__init__(message, offset)
        self.offset = offset

    def __str__(self) -> str:
        return str(self.args[0])
