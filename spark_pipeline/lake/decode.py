"""Values of an archive, decoded from what the writer sent: JSON, Avro or Protobuf, by a schema that was given.

A decoder makes a column of structs; a value that it cannot read becomes null, with a sentence that says why, and its
record a dead letter. A record without a value (a tombstone) has none afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_pipeline.lake.decoding import Decoding, Unreadable, ValueReader


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
