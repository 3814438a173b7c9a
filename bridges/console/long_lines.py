"""Long lines of JSON, parsed piece by piece: no step takes long, however long a line and its texts are.

Texts of more than a kibibyte are taken out of the line, which is short then and parsed in one go, and are decoded by
themselves, each in pieces that split neither a character nor an escape.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
from collections.abc import Generator
from io import BytesIO
from typing import Any

from bridges.console.json_records import BadLine, FieldReader, record_of
from bridges.formats.records import Record

MOST_VALUES = 100_000
"""Values (numbers, texts, members of lists and objects) of a line: each costs a good part of a microsecond."""
_LONG_TEXT = 1024
_PIECE = 64 * 1024
_AT_ONCE = 500
"""Texts of a line that one step passes."""
_NO_VALUE = bytes(set(range(256)) - set(b",[{"))
_WITHIN = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
"""What a text may go on with."""
_ESCAPED = re.compile(rb"(?:[^\\]++|\\u....|\\[^u])*+", re.DOTALL)
"""Whole escapes, and what is none."""


def parse_long_line(line: bytes) -> Generator[None, None, tuple[Record, int | None]]:
    """:func:`bridges.console.json_records.parse_line`, yielding now and then."""
    texts = LongTexts(line)
    short = yield from texts.taken_out()
    return (yield from record_of(_loads(short), texts))


def _loads(data: bytes) -> Any:
    """Raises BadLine, which does not tell where: what is parsed is not what was sent."""
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {getattr(error, 'msg', error)}") from None


def _end(pattern: re.Pattern[bytes], line: bytes, start: int, end: int) -> int:
    found = pattern.match(line, start, end)
    assert found is not None  # nothing is enough for it
    return found.end()


class LongTexts(FieldReader):
    """The long texts of a line. What stands for one in the parsed line is a text that nobody can have guessed."""

    def __init__(self, line: bytes) -> None:
        self._line = line
        self._spans: list[tuple[int, int]] = []
        self._mark = secrets.token_hex(16)
        self._marks = re.compile(f'"{self._mark}:([0-9]+)"')

    def taken_out(self) -> Generator[None, None, bytes]:
        """The line with something short in place of each long text. Raises BadLine for too many values."""
        line, short = self._line, bytearray()
        at = texts = values = 0
        while at < len(line):
            end = line.find(b'"', at, at + _PIECE)
            if end < 0:
                end = min(at + _PIECE, len(line))
                yield
            outside = line[at:end]
            values += len(outside.translate(None, _NO_VALUE))
            if values > MOST_VALUES or texts > 2 * MOST_VALUES:
                raise BadLine(f"more than {MOST_VALUES} values in one line: give a large value as text")
            short += outside
            at = end
            if line[at : at + 1] != b'"':
                continue
            close = yield from self._end_of_text(at + 1)
            if close - at > _LONG_TEXT:
                short += b'"%s:%d"' % (self._mark.encode(), len(self._spans))
                self._spans.append((at + 1, close))
            else:
                short += line[at : close + 1]
            at = close + 1
            texts += 1
            if not texts % _AT_ONCE:
                yield
        return bytes(short)

    def _end_of_text(self, start: int) -> Generator[None, None, int]:
        """Where the quotation mark is that ends the text which begins at ``start``."""
        line, at = self._line, start
        while True:
            end = _end(_WITHIN, line, at, at + _PIECE)
            if line[end : end + 1] == b'"':
                return end
            if end == at:
                raise BadLine("not JSON: a text has no end")
            at = end
            yield

    # --- decoding ---------------------------------------------------------------------------------------------------

    def _texts(self, number: int) -> Generator[str | None, None, None]:
        """A long text in pieces, None between two of them. Raises BadLine."""
        line = self._line
        at, close = self._spans[number]
        high = ""  # half of a surrogate pair
        while at < close:
            end = _end(_ESCAPED, line, at, min(at + _PIECE, close))
            while end < close and line[end] & 0xC0 == 0x80:
                end -= 1  # no character lies across it
            if end <= at:
                end = min(at + _PIECE, close)  # it is no JSON, which is told below
            piece: str = _loads(b'"%b"' % line[at:end])
            if high:
                pair = (high + piece[:1]).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
                piece = pair + piece[1:]
            high = piece[-1] if "\ud800" <= piece[-1:] < "\udc00" else ""
            yield piece.removesuffix(high)
            yield None
            at = end
        if high:
            yield high

    def _number(self, value: Any) -> int | None:
        """Which long text ``value`` stands for, if for one."""
        if isinstance(value, str) and value.startswith(self._mark):
            return int(value.rpartition(":")[2])
        return None

    def text(self, value: Any, what: str) -> Generator[None, None, bytes | None]:
        number = self._number(value)
        if number is None and (value is None or isinstance(value, str)):
            return (yield from super().text(value, what))
        whole = BytesIO()
        try:
            if number is not None:
                for piece in self._texts(number):
                    if piece is None:
                        yield
                    else:
                        whole.write(piece.encode())
            else:
                told = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
                at = 0
                for found in self._marks.finditer(told):
                    whole.write(f'{told[at : found.start()]}"'.encode())
                    for piece in self._texts(int(found[1])):
                        if piece is None:
                            yield
                        else:
                            whole.write(json.dumps(piece, ensure_ascii=False)[1:-1].encode())
                    whole.write(b'"')
                    at = found.end()
                whole.write(told[at:].encode())
        except UnicodeEncodeError:
            raise BadLine(f"{what} has half a surrogate pair, which is no character") from None
        return whole.getvalue()

    def base64(self, value: Any, what: str) -> Generator[None, None, bytes]:
        number = self._number(value)
        if number is None:
            return (yield from super().base64(value, what))
        whole, carried, ended = BytesIO(), "", False
        try:
            for piece in self._texts(number):
                if piece is None:
                    yield
                    continue
                carried += piece
                size = len(carried) // 4 * 4
                if size and ended:
                    raise binascii.Error
                decoded = base64.b64decode(carried[:size], validate=True)
                ended = carried[:size].endswith("=")
                whole.write(decoded)
                carried = carried[size:]
            if carried:
                raise binascii.Error
        except (binascii.Error, ValueError):
            raise BadLine(f"{what} is not base64") from None
        return whole.getvalue()

    def name(self, value: str, what: str) -> Generator[None, None, str]:
        number = self._number(value)
        if number is None:
            return (yield from super().name(value, what))
        named = yield from self.text(value, what)
        assert named is not None
        return named.decode()
