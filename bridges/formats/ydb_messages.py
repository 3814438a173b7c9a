"""A fast reader of YDB's messages, many in one call of protobuf's own parser. It reads only messages that have nothing
but a number, a time and data; :mod:`bridges.formats.ydb` reads all others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

_LATEST_S = 1 << 43
"""Seconds from 1970 beyond which a time counts as a mistake; the slow reader handles it."""


@cache
def _request() -> tuple[Callable[[bytes], Any], type[Exception]]:
    """Return the parser of the WriteRequest fields needed here, and the error it raises. The import is local: a node
    without YDB's front starts without protobuf."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    file = FileDescriptorProto(name="anabranch/messages.proto", package="anabranch", syntax="proto3")
    tables = {
        "Time": [(1, "seconds", Field.TYPE_INT64, ""), (2, "nanos", Field.TYPE_INT64, "")],
        "Message": [
            (1, "seq_no", Field.TYPE_INT64, ""),
            (2, "created_at", Field.TYPE_MESSAGE, "Time"),
            (3, "data", Field.TYPE_BYTES, ""),
            (7, "items", Field.TYPE_BYTES, "*"),
        ],
        "Request": [(1, "messages", Field.TYPE_MESSAGE, "*Message")],
    }
    for name, fields in tables.items():
        message = file.message_type.add(name=name)
        for number, field, kind, of in fields:
            label = Field.LABEL_REPEATED if of.startswith("*") else Field.LABEL_OPTIONAL
            one = message.field.add(name=field, number=number, type=kind, label=label)
            if kind == Field.TYPE_MESSAGE:
                one.type_name = f".anabranch.{of.lstrip('*')}"
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("anabranch.Request")).FromString, DecodeError


def read_messages(data: bytes) -> tuple[list[int], list[int], list[bytes]] | None:
    """Return the seq_nos, times (ms, -1 without) and data of encoded messages; None if a message has anything else, or
    is malformed."""
    parse, malformed = _request()
    try:
        messages = parse(data).messages
    except malformed:
        return None
    times: list[int] = []
    for one in messages:
        created = one.created_at
        seconds, nanos = created.seconds, created.nanos
        if one.items or not (-_LATEST_S < seconds < _LATEST_S and 0 <= nanos < 1_000_000_000):
            return None
        if seconds or nanos or one.HasField("created_at"):
            times.append(seconds * 1000 + nanos // 1_000_000)
        else:
            times.append(-1)
    return [one.seq_no for one in messages], times, [one.data for one in messages]
