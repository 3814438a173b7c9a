"""Parts of WriteRequests as batches of the log, the way the producer of one session writes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bridges.formats import FormatId
from bridges.formats.producer import SeqNoStamp
from bridges.formats.records import Buffer
from bridges.formats.ydb import encode_batch, encode_in_slices, parse_head, without_first
from bridges.log.interfaces import Batch
from bridges.sliced import Sliced
from ydb_topic_front.session.write_request import Part

_YDB = int(FormatId.YDB)


class Batches:
    """Makes them: ``producer`` is empty where nothing is deduplicated, ``meta`` the session's metadata, encoded."""

    __slots__ = ("_meta", "_producer")

    def __init__(self, producer: bytes, meta: bytes) -> None:
        self._producer = producer
        self._meta = meta

    def batch(self, part: Part, codec: int) -> Batch:
        """The batch of a part. Its messages are copied."""
        seq_nos = part.seq_nos
        return self._around(
            encode_batch(
                self._producer,
                self._meta,
                codec,
                len(seq_nos),
                seq_nos[0],
                seq_nos[-1],
                part.max_created_ms,
                part.messages,
            ),
            part,
        )

    def in_slices(self, part: Part, codec: int) -> Sliced[Batch]:
        """The same for a part of which to copy all would hold up others."""
        seq_nos = part.seq_nos
        payload = yield from encode_in_slices(
            self._producer,
            self._meta,
            codec,
            len(seq_nos),
            seq_nos[0],
            seq_nos[-1],
            part.max_created_ms,
            part.messages,
        )
        return self._around(payload, part)

    def _around(self, payload: Buffer, part: Part) -> Batch:
        seq_nos = part.seq_nos
        if not self._producer:
            return Batch(payload, len(seq_nos), _YDB, part.max_created_ms)
        stamp = SeqNoStamp(self._producer, seq_nos)
        rest = partial(self._rest, payload, seq_nos)
        return Batch(payload, len(seq_nos), _YDB, part.max_created_ms, stamp, None, rest)

    def _rest(self, payload: Buffer, seq_nos: Sequence[int], skipped: int) -> Batch:
        """A batch without the messages that are in the log already."""
        head = parse_head(payload)
        messages = without_first(memoryview(payload)[head.body :], skipped)
        return self.batch(Part(messages, seq_nos[skipped:], head.max_created_ms), head.codec)
