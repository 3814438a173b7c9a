"""Values of an archive, decoded from what the writer sent: JSON, Avro or Protobuf, by a schema that was given.

A decoder makes a column of structs; a value that it cannot read becomes null, with a sentence that says why, and its
record a dead letter. A record without a value (a tombstone) has none afterwards.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from spark_pipeline.core.errors import OptionError

FORMATS = ("json", "avro", "protobuf")
FRAMINGS = ("none", "registry")
MAGIC = 0


@dataclass(frozen=True, slots=True)
class Decoding:
    """How values are decoded: kept with the archive, so that every run does the same.

    ``schema`` is a JSON Schema, an Avro schema, or a Protobuf descriptor set (``protoc --descriptor_set_out
    --include_imports``) in base64, of which ``message`` is the full name of the message. With ``framing`` "registry" a
    value begins with a zero byte and the schema's number in 4 bytes, as schema registries' serializers write it;
    ``writers`` are Avro schemas by that number, where they are not ``schema`` itself.
    """

    format: str
    schema: str
    message: str = ""
    framing: str = "none"
    writers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise OptionError(f"{self.format!r} is no format of values: {', '.join(FORMATS)}")
        if self.framing not in FRAMINGS:
            raise OptionError(f"{self.framing!r} is no framing: {', '.join(FRAMINGS)}")
        if (self.format == "protobuf") != bool(self.message):
            raise OptionError("the name of a message belongs to Protobuf, and to nothing else")
        if self.writers and (self.format != "avro" or self.framing != "registry"):
            raise OptionError("writers' schemas by number belong to Avro with the framing of a registry")

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Decoding:
        """As :func:`dataclasses.asdict` has it."""
        return cls(**told)

    @classmethod
    def of_file(cls, format_: str, content: bytes, **named: Any) -> Decoding:
        """With a schema from a file."""
        schema = base64.b64encode(content).decode() if format_ == "protobuf" else content.decode()
        return cls(format_, schema, **named)


class Unreadable(ValueError):
    """A value does not agree with the schema; the text says where."""


class ValueReader(Protocol):
    """Reads one value."""

    @property
    def type(self) -> pa.DataType:
        """What values become."""

    def read(self, value: bytes) -> Any:
        """A value as ``pa.array`` takes it for ``type``. Raises Unreadable, and nothing else."""


@dataclass(slots=True)
class Decoder:
    """Decodes columns of values; for one thread."""

    reader: ValueReader

    @property
    def type(self) -> pa.DataType:
        """What the column of decoded values has."""
        return self.reader.type

    def decode(self, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """The decoded column, and for the rows that could not be decoded, which are null there, the reason."""
        decoded: list[Any] = []
        reasons: dict[int, str] = {}
        for row, value in enumerate(values.to_pylist()):
            try:
                decoded.append(None if value is None else self.reader.read(value))
            except Unreadable as error:
                reasons[row] = str(error)[:500]
                decoded.append(None)
        try:
            return pa.array(decoded, self.type), reasons
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return self._one_by_one(decoded, reasons)

    def _one_by_one(self, decoded: list[Any], reasons: dict[int, str]) -> tuple[pa.Array, dict[int, str]]:
        """What a reader let through and Arrow does not take, such as a number that is too large."""
        for row, one in enumerate(decoded):
            try:
                pa.array([one], self.type)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                reasons[row] = f"does not fit its column: {error}"[:500]
                decoded[row] = None
        return pa.array(decoded, self.type), reasons


def unframed(value: bytes) -> tuple[int, bytes]:
    """The schema's number and what follows it. Raises Unreadable."""
    if len(value) < 5 or value[0] != MAGIC:
        raise Unreadable("does not begin with a zero byte and the number of a schema")
    return int.from_bytes(value[1:5], "big"), value[5:]


def decoder(decoding: Decoding) -> Decoder:
    """The decoder for ``decoding``. Raises OptionError for a schema that cannot be read, or made columns of."""
    if decoding.format == "json":
        from spark_pipeline.lake.decode_json import JsonReader

        return Decoder(JsonReader.of(decoding))
    if decoding.format == "avro":
        from spark_pipeline.lake.decode_avro import AvroReader

        return Decoder(AvroReader.of(decoding))
    from spark_pipeline.lake.decode_protobuf import ProtobufReader

    return Decoder(ProtobufReader.of(decoding))
