"""What a partition learns from stored batches when it is rebuilt."""

from __future__ import annotations

import pytest

from bridges.errors import OutOfOrderSequence
from bridges.formats import FormatId
from bridges.formats.kafka import CONTROL, TRANSACTIONAL, encode
from bridges.formats.producer import ProducerStamp
from bridges.formats.records import Record
from bridges.log.partition_state import PartitionState

KAFKA = int(FormatId.KAFKA)
ONE = [Record(b"k", b"v", timestamp=5)]


@pytest.mark.parametrize("sequence", [-1, 0])
def test_a_transactions_marker_takes_no_sequence_number_of_its_producer(sequence: int) -> None:
    state = PartitionState(10)
    state.observe(0, encode(ONE * 3, producer_id=7, producer_epoch=1, base_sequence=0), KAFKA, 10)
    marker = encode(ONE, producer_id=7, producer_epoch=1, base_sequence=sequence, attributes=CONTROL | TRANSACTIONAL)
    state.observe(3, marker, KAFKA, 11)
    assert state.ledger.check(ProducerStamp(7, 1, 3, 1)) is None, "the next batch goes on where the last one ended"
    assert state.ledger.check(ProducerStamp(7, 1, 0, 3)) == 0, "a repeated one is still known"
    with pytest.raises(OutOfOrderSequence):
        state.ledger.check(ProducerStamp(7, 1, 4, 1))


def test_a_batch_without_a_sequence_number_says_nothing_of_its_producer() -> None:
    state = PartitionState(10)
    state.observe(0, encode(ONE, producer_id=7, producer_epoch=1, base_sequence=0), KAFKA, 10)
    state.observe(1, encode(ONE, producer_id=7, producer_epoch=1), KAFKA, 11)
    assert state.ledger.check(ProducerStamp(7, 1, 1, 1)) is None
