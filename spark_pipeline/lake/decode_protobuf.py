"""Protobuf values by a descriptor set, with Google's library."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from spark_pipeline.core.errors import OptionError
from spark_pipeline.lake.decoding import Decoding, Unreadable, unframed

_PLAIN = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),  # tables have no unsigned numbers
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
_TIMESTAMP = "google.protobuf.Timestamp"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Convert = Callable[[Any], Any]


@dataclass(slots=True)
class ProtobufReader:
    """See ValueReader."""

    type: pa.DataType
    _message: Any
    _convert: Convert
    _framed: bool

    @classmethod
    def of(cls, decoding: Decoding) -> ProtobufReader:
        """Raises OptionError."""
        files = descriptor_pb2.FileDescriptorSet()
        pool = descriptor_pool.DescriptorPool()
        try:
            files.ParseFromString(base64.b64decode(decoding.schema, validate=True))
            for file in files.file:
                pool.Add(file)
            descriptor = pool.FindMessageTypeByName(decoding.message)
        except (DecodeError, binascii.Error, TypeError) as error:
            raise OptionError(f"the descriptor set cannot be read: {error}") from error
        except KeyError as error:
            raise OptionError(f"the descriptor set has no message {decoding.message!r}: {error}") from error
        kind, convert = _message(descriptor, ())
        return cls(kind, message_factory.GetMessageClass(descriptor), convert, decoding.framing == "registry")

    def read(self, value: bytes) -> Any:
        """See ValueReader."""
        if self._framed:
            _, value = unframed(value)
            value = _behind_indexes(value)
        try:
            return self._convert(self._message.FromString(value))
        except (DecodeError, OverflowError) as error:
            raise Unreadable(f"is no such Protobuf message: {error}") from error


def _behind_indexes(value: bytes) -> bytes:
    """What follows the message's place in its file: a number of numbers, zigzag varints. Raises Unreadable."""
    place = 0

    def varint() -> int:
        nonlocal place
        number = shift = 0
        while True:
            if place >= len(value) or shift > 63:
                raise Unreadable("ends within the message's place in its file")
            byte = value[place]
            place += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)

    count = varint()
    if not 0 <= count <= 64:
        raise Unreadable("has no message's place in its file")
    for _ in range(count):
        varint()
    return value[place:]


def _message(descriptor: Descriptor, within: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
    if descriptor.full_name in within:
        raise OptionError(f"the message {descriptor.full_name} holds itself: it has no columns")
    if not descriptor.fields:
        raise OptionError(f"the message {descriptor.full_name} has no fields: a column needs one")
    parts = [(one.name, *_field(one, (*within, descriptor.full_name)), _present(one)) for one in descriptor.fields]

    def convert(message: Any) -> dict[str, Any]:
        return {
            name: inner(getattr(message, name)) if not optional or message.HasField(name) else None
            for name, _, inner, optional in parts
        }

    return pa.struct([pa.field(name, kind) for name, kind, _, _ in parts]), convert


def _repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _present(field: FieldDescriptor) -> bool:
    """Whether a message tells that the field is not there, which becomes null."""
    return not _repeated(field) and bool(field.has_presence)


def _field(field: FieldDescriptor, within: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, _ = _single(field.message_type.fields_by_name["key"], within)
        kind, inner = _single(field.message_type.fields_by_name["value"], within)
        return pa.map_(key, kind), lambda value: [(name, inner(one)) for name, one in sorted(value.items())]
    kind, inner = _single(field, within)
    if _repeated(field):
        return pa.list_(pa.field("element", kind)), lambda value: [inner(one) for one in value]
    return kind, inner


def _single(field: FieldDescriptor, within: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return pa.timestamp("us", "UTC"), _moment
        return _message(field.message_type, within)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return (pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()), _same
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        return pa.string(), lambda value: names.get(value, str(value))
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return _PLAIN[field.cpp_type], Decimal
    return _PLAIN[field.cpp_type], _same


def _same(value: Any) -> Any:
    return value


def _moment(value: Any) -> datetime:
    return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
