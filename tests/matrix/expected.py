"""What a reader tells of what a writer wrote: the rules of docs/translation.md, said once more, and of nothing else.

Nothing here comes from the product. A cell is (writer, reader, kind); :func:`refused` says what a writer's protocol has
no words for, :func:`expected` what a reader of each protocol is told of the rest.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from tests.matrix.kinds import APPENDED, BYTES, UNTOLD, Headers, Kind, Told, Where

YEAR_9999 = 253_402_300_799_999
"""Its last millisecond, which is the last that a created_at of YDB's can say."""


class Protocol(StrEnum):
    """What a client speaks. Spark's sink and the commands write Kafka's batches."""

    KAFKA = "Kafka"
    PRAVEGA = "Pravega"
    YDB = "YDB"
    SBP = "SBP"
    SPARK = "Spark"
    CONSOLE = "HTTP"


def refused(writer: Protocol, kind: Kind) -> str:
    """Why a protocol cannot say this; empty if it can."""
    match writer:
        case Protocol.YDB:
            if kind.codec != "none" and kind.sent is None:
                return "no codec of YDB's"
            if any(value is None for _, value in kind.headers):
                return "items have values"
            if kind.key is None and any(name == "__key" for name, _ in kind.headers):
                return "the item is the key"
            if kind.created > YEAR_9999:
                return "times end with 9999"
        case Protocol.PRAVEGA:
            if kind.value is None or kind.key is not None or kind.headers or kind.codec not in ("none", BYTES):
                return "events are data alone"
        case Protocol.SBP:
            if kind.value is None or kind.key is not None or kind.headers or kind.codec != "none" or kind.created < 1:
                return "no keys"
        case Protocol.CONSOLE:
            if kind.created < 0 or kind.codec != "none":
                return "not in JSON"
        case Protocol.SPARK:
            if kind.created < 0 or kind.codec == "lzop":
                return "not in rows"
    if kind.ydb_alone and writer != Protocol.YDB:
        return "no codec of this protocol"
    if kind.bytes_alone and writer != Protocol.PRAVEGA:
        return "of Pravega alone"
    return ""


def expected(writer: Protocol, reader: Protocol, kind: Kind) -> Told:
    """The record, without its offset."""
    told = _stored(writer, kind)
    if writer == reader == Protocol.YDB:  # as it was sent
        shown = replace(through_ydb(replace(told, created=UNTOLD)), created=kind.created)
        return shown if kind.decodes else replace(shown, value=kind.sent)
    if not kind.decodes:
        assert kind.sent is not None
        assert isinstance(told.headers, tuple)
        told = replace(told, value=kind.sent, headers=(*told.headers, ("anabranch.codec", kind.codec.encode())))
    match reader:
        case Protocol.PRAVEGA:
            return Told(UNTOLD, told.value or b"")
        case Protocol.YDB:
            return through_ydb(told)
    return told


def _stored(writer: Protocol, kind: Kind) -> Told:
    if writer == Protocol.PRAVEGA:
        return Told(UNTOLD, kind.value, None, (), APPENDED)
    created = APPENDED if kind.where is Where.STAMPED else kind.created
    return Told(UNTOLD, kind.value, kind.key, kind.headers, created)


def through_ydb(told: Told) -> Told:
    """Keys and headers as YDB's metadata items, which is how its readers tell of them."""
    assert isinstance(told.headers, tuple)
    assert told.key is None or isinstance(told.key, bytes)
    key: Headers = () if told.key is None else (("__key", told.key),)
    nulls = [str(place) for place, (_, value) in enumerate(told.headers) if value is None]
    if told.key is None and any(name == "__key" for name, _ in told.headers):
        nulls.insert(0, "key")
    items = (*key, *((name, value or b"") for name, value in told.headers))
    if told.value is None:
        items = (*items, ("anabranch.tombstone", b""))
    if nulls:
        items = (*items, ("anabranch.null", ",".join(nulls).encode()))
    if isinstance(told.created, int) and told.created > YEAR_9999:
        items = (*items, ("anabranch.timestamp", str(told.created).encode()))
        told = replace(told, created=None)
    return replace(told, value=told.value or b"", key=UNTOLD, headers=items)
