"""How an archive's values are decoded, and what reads one of them."""

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


def unframed(value: bytes) -> tuple[int, bytes]:
    """The schema's number and what follows it. Raises Unreadable."""
    if len(value) < 5 or value[0] != MAGIC:
        raise Unreadable("does not begin with a zero byte and the number of a schema")
    return int.from_bytes(value[1:5], "big"), value[5:]
