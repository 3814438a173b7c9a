"""Batches of YDB's and Pravega's formats on their way into a topic that is imported, behind heads of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridges.formats import FormatId
from bridges.formats import pravega as pravega_format
from bridges.formats.producer import LedgerKind, SeqNoStamp
from bridges.formats.ydb import Head, encode_batch
from bridges.log.ledger.rules import Last
from spark_pipeline.core import frames
from spark_pipeline.core.errors import Conflict, PipelineError
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.importer import Importer
from tests.spark_pipeline.node.pipeline_lab import Lab, open_lab

T = TopicPartition("t", 0)
KEY = SeqNoStamp(b"p", ()).key
YDB, PRAVEGA = int(FormatId.YDB), int(FormatId.PRAVEGA)


def importer(lab: Lab) -> Importer:
    return Importer(f"anabranch://{lab.node.addresses['pipeline']}", {"patienceMs": "1000"}, "m")


def messages(*seq_nos: int, producer: bytes = b"p", claimed: int = 0) -> bytes:
    """A batch of YDB's with a message for each number."""
    body = b"".join(b"\x0a\x05\x08" + bytes([seq_no]) + b"\x1a\x01x" for seq_no in seq_nos)
    return encode_batch(Head(False, 1, claimed or len(seq_nos), seq_nos[0], seq_nos[-1], -1, producer, b""), body)


def events(*values: bytes, writer: bytes = pravega_format.NO_WRITER, claimed: int = 0) -> bytes:
    """A batch of Pravega's whose events lie at the places of their bytes."""
    places, parts, at = b"", b"", 0
    for value in values:
        places += at.to_bytes(4)
        parts += bytes(4) + len(value).to_bytes(4) + value
        at += 8 + len(value)
    shape = pravega_format.Shape.SCATTERED
    return pravega_format.encode([places, parts], len(parts), shape, claimed or len(values), writer_id=writer)


def framed(base: int, span: int, payload: bytes) -> bytearray:
    out = bytearray()
    frames.put_batch(out, base, span, payload)
    return out


async def test_producers_of_ydb_bring_their_numbers(lab: Lab, tmp_path: Path) -> None:
    """In the order of the log, whatever they are: who forgot a producer let it begin anew."""
    target = importer(lab)
    epoch = (await lab.ask(target.begin, "t", 1, {})).epoch
    brought = framed(3, 2, messages(50, 70)) + framed(5, 1, messages(9)) + framed(9, 1, messages(4, producer=b""))
    assert await lab.ask(target.append, T, epoch, [brought], YDB) == 10
    assert (
        await lab.ask(target.append, T, epoch, [brought[: len(brought) // 2], brought[len(brought) // 2 :]], YDB) == 10
    )
    assert lab.log("t").last(LedgerKind.SEQ_NO, KEY) == Last(9, 5)
    with pytest.raises(Conflict, match="other bytes at offset 5"):
        await lab.ask(target.append, T, epoch, [framed(5, 1, messages(8))], YDB)
    await lab.ask(target.cutover, {"t": [10]})
    target.close()
    await lab.close()
    again = await open_lab(tmp_path)
    log = again.log("t")
    await log.ready()
    assert (log.high_watermark, log.last(LedgerKind.SEQ_NO, KEY)) == (10, Last(9, 5))
    lab.node, lab.client = again.node, again.client


@pytest.mark.parametrize(
    ("form", "frame", "reason"),
    [
        (YDB, framed(0, 3, messages(1, 2)), "2 messages in 3 offsets"),
        (YDB, framed(0, 2, messages(1, claimed=2)), None),  # found by who reads it: the header is a claim
        (YDB, framed(0, 1, messages(1)[:-1] + b"y"), "checksum"),
        (YDB, framed(0, 0, messages(1)), "spans 0 offsets"),
        (YDB, framed(-1, 1, messages(1)), "is none"),
        (YDB, frames.HEAD.pack(0, 1, 1 << 24), "16777216 bytes"),
        (YDB, framed(0, 1, messages(1))[:-1], "no whole batch"),
        (YDB, framed(0, 1, events(b"a")), "not known|shorter"),
        (PRAVEGA, framed(0, 9, events(b"a", writer=b"w" * 16)), "or a writer| a writer"),
        (PRAVEGA, framed(0, 1, events(b"a", b"b")), "2 events in 1 offsets"),
        (PRAVEGA, framed(0, 9, events(b"a")[:-1] + b"b"), "checksum"),
        (7, framed(0, 1, b""), "cannot be brought"),
    ],
)
async def test_what_is_no_batch_is_refused(lab: Lab, form: int, frame: bytearray | bytes, reason: str | None) -> None:
    target = importer(lab)
    epoch = (await lab.ask(target.begin, "t", 1, {})).epoch
    if reason is None:
        assert await lab.ask(target.append, T, epoch, [frame], form) == 2
    else:
        with pytest.raises(PipelineError, match=reason):
            await lab.ask(target.append, T, epoch, [frame], form)
        assert (await lab.ask(target.state, "t")).partitions[0].high_watermark == 0
    target.close()


async def test_events_lie_where_their_bytes_did(lab: Lab) -> None:
    target = importer(lab)
    epoch = (await lab.ask(target.begin, "t", 1, {})).epoch
    brought = framed(0, 8 + 3 + 8, events(b"abc", b"")) + framed(19, 9, events(b"d"))
    assert await lab.ask(target.append, T, epoch, [brought], PRAVEGA) == 28
    assert await lab.ask(target.append, T, epoch, [framed(19, 9, events(b"d"))], PRAVEGA) == 28
    with pytest.raises(Conflict):
        await lab.ask(target.append, T, epoch, [framed(19, 9, events(b"e"))], PRAVEGA)
    target.close()
