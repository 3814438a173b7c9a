"""What a partition learns from stored batches when it is rebuilt."""

from __future__ import annotations

import struct

import pytest

from bridges.errors import OutOfOrderSequence
from bridges.formats import FormatId
from bridges.formats.kafka import CONTROL, TRANSACTIONAL, encode
from bridges.formats.producer import EventStamp, LedgerKind, ProducerStamp, SeqNoStamp
from bridges.formats.records import Record
from bridges.log.ledger.rules import Last, Repeated, Skip, kafka_producer
from bridges.log.state.partition_state import PartitionState
from sbp_back.errors import DecodeError

KAFKA = int(FormatId.KAFKA)
ONE = [Record(b"k", b"v", timestamp=5)]


def known(state: PartitionState, sequence: int, records: int) -> Repeated | Skip | None:
    stamp = ProducerStamp(7, 1, sequence, records)
    return state.ledger.table(stamp.kind).check(stamp.key, stamp)


@pytest.mark.parametrize("sequence", [-1, 0])
def test_a_transactions_marker_takes_no_sequence_number_of_its_producer(sequence: int) -> None:
    state = PartitionState()
    state.observe(0, encode(ONE * 3, producer_id=7, producer_epoch=1, base_sequence=0), KAFKA, 10)
    marker = encode(ONE, producer_id=7, producer_epoch=1, base_sequence=sequence, attributes=CONTROL | TRANSACTIONAL)
    state.observe(3, marker, KAFKA, 11)
    assert known(state, 3, 1) is None, "the next batch goes on where the last one ended"
    assert known(state, 0, 3) == Repeated(0, 3), "a repeated one is still known"
    with pytest.raises(OutOfOrderSequence):
        known(state, 4, 1)


def test_a_batch_without_a_sequence_number_says_nothing_of_its_producer() -> None:
    state = PartitionState()
    state.observe(0, encode(ONE, producer_id=7, producer_epoch=1, base_sequence=0), KAFKA, 10)
    state.observe(1, encode(ONE, producer_id=7, producer_epoch=1), KAFKA, 11)
    assert known(state, 1, 1) is None


# Written by version 2 of the stored form: producer 7 in epoch 1 with batches of two at 0, 2, ... 12, and producer 2^40
# with one of three at 14.
FORMER = bytes.fromhex(
    "020000003500000010000000000000000e00000000000000640000000000000bb80200000001000000000001000000000000"
    "0000032000000000000000000000000000000000f103000000000000ffffffffffffffff0000000000000003000000000000"
    "00000000000000000007000100000000000007d6050000000400000005000000000000000400000006000000070000000000"
    "000006000000080000000900000000000000080000000a0000000b000000000000000a0000000c0000000d00000000000000"
    "0c000001000000000000000000000000000bb8017fffffff00000001000000000000000e"
)


def test_snapshots_of_the_former_version_are_read_and_written_anew() -> None:
    state = PartitionState()
    for _ in state.restoring(FORMER):
        pass
    for _ in range(2):
        assert state.last == (14, 100, 3000)
        assert state.epochs == [(3, 0)]
        table = state.ledger.table(LedgerKind.KAFKA)
        producers = [kafka_producer(key, row) for key in table.writers() if (row := table.row(key)) is not None]
        assert [(one.producer_id, one.epoch, one.last_ms) for one in producers] == [(7, 1, 2006), (1 << 40, 0, 3000)]
        assert [tuple(one) for one in producers[0].batches] == [(n, n + 1, n) for n in range(4, 14, 2)]
        assert [tuple(one) for one in producers[1].batches] == [(2**31 - 1, 1, 14)]
        capture = state.capture(17)
        data = b"".join(capture.pieces())
        capture.close()
        state = PartitionState()
        for _ in state.restoring(data):
            pass


def test_a_snapshot_holds_writers_of_all_kinds() -> None:
    state = PartitionState()
    stamps = [ProducerStamp(7, 0, 0, 1), EventStamp(bytes(16), 50), SeqNoStamp("schön".encode() * 100, [3, 9])]
    for base, stamp in enumerate(stamps):
        state.ledger.record(stamp, base, 1)
    capture = state.capture(3)
    data = b"".join(capture.pieces())
    capture.close()
    again = PartitionState()
    for _ in again.restoring(data):
        pass
    assert [again.ledger.last(stamp.kind, stamp.key) for stamp in stamps] == [Last(0, 0), Last(50, 1), Last(9, 2)]
    bare = PartitionState().capture(0)
    first = len(b"".join(bare.pieces()))
    bare.close()
    whole = []
    for end in range(len(data)):
        try:
            for _ in PartitionState().restoring(data[:end]):
                pass
            whole.append(end)
        except DecodeError:
            assert end not in whole
    assert whole[0] == first
    assert len(whole) == len(stamps), "only where a kind ends a cut is not seen; the checksum sees that"


def test_a_snapshot_tells_which_formats_there_have_been() -> None:
    state = PartitionState()
    state.observe(0, encode(ONE), KAFKA, 10)
    state.observe(1, b"no batch of that format", int(FormatId.YDB), 11)
    capture = state.capture(2)
    data = b"".join(capture.pieces())
    capture.close()
    restored = PartitionState()
    for _ in restored.restoring(data):
        pass
    assert restored.formats == 1 << FormatId.KAFKA | 1 << FormatId.YDB
    index, epochs, transactions = (int.from_bytes(data[at : at + 4], "big") for at in (1, 5, 33))
    behind = 39 + index + epochs + transactions
    before = bytes([4]) + data[1:33] + (transactions - 16).to_bytes(4, "big") + data[39 : behind - 16] + data[behind:]
    for _ in restored.restoring(before):
        pass
    assert (restored.formats, restored.last) == (0, state.last), "the form before this one does not tell"


@pytest.mark.parametrize(
    ("formats", "oldest"),
    [(1 << FormatId.KAFKA, 5), (1 << FormatId.KAFKA | 1 << FormatId.YDB, 900), (1 << FormatId.YDB, 900), (1 << 8, 900)],
)
def test_former_snapshots_delete_nothing_because_of_what_another_clock_claimed(formats: int, oldest: int) -> None:
    index = struct.pack(">BIQQ", 2, 1, 1 << 16, 100) + struct.pack("=4q", 0, 0, 5, -1)
    state = PartitionState()
    for _ in state.restoring(struct.pack(">BIIqqqIH", 5, len(index), 0, 0, 100, 900, 0, formats) + index):
        pass
    assert state.index.blocking(oldest) is not None
    assert state.index.blocking(oldest + 1) is None
    assert state.index.seek(5) is not None
