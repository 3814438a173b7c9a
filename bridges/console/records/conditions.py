"""Conditions on the JSON of a record's value: ``customer.country = DE and items[*].qty >= 2``.

A condition is a path, an operator and a value; a path alone asks whether it exists. Paths have names, ``["names"]``,
places in lists (``[0]``) and ``[*]`` for every element. An unquoted value matches a string as well as a number.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from bridges.http.errors import RequestError

PARSED_BYTES = 128 * 1024
"""Longest value that is parsed: a longer one would hold the interpreter for more than some milliseconds."""
_LONGEST = 2_000
_MOST = 8
_STEP = re.compile(r'\.?([^\s.\[\]"=!<>~]+)|\[(\d{1,9}|\*)\]|\[("(?:[^"\\]|\\.)*")\]')
_OPERATOR = re.compile(r"\s*(!=|<=|>=|=|<|>|~)\s*")
_VALUE = re.compile(r'"(?:[^"\\]|\\.)*"|(?:(?!\s+and(?:\s|$)).)+', re.IGNORECASE)
_AND = re.compile(r"\s+and(?:\s+|$)", re.IGNORECASE)
_ORDERED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition(Struct, frozen=True):
    """A condition. ``operator``: empty to ask whether ``path`` exists. ``text``: the value as written, if unquoted."""

    path: Sequence[str | int | None]
    """Names, places, and None for every element."""
    operator: str
    value: Any
    text: str | None

    def holds(self, document: Any) -> bool:
        """Return whether one of the values at the path meets it."""
        return any(self._meets(found) for found in _at(document, self.path))

    def _meets(self, found: Any) -> bool:
        if not self.operator:
            return True
        if self.operator in ("=", "!="):
            return self._equals(found) == (self.operator == "=")
        if self.operator == "~":
            return str(self.value if self.text is None else self.text) in (
                found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
            )
        if (_is_number(found) and _is_number(self.value)) or (isinstance(found, str) and isinstance(self.value, str)):
            return _ORDERED[self.operator](found, self.value)
        return False

    def _equals(self, found: Any) -> bool:
        if isinstance(found, str):
            return found in (self.value, self.text)
        if _is_number(found) and _is_number(self.value):
            return bool(found == self.value)
        return type(found) is type(self.value) and bool(found == self.value)


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Return the conditions that ``text`` joins by ``and``. Raises RequestError."""
    if len(text) > _LONGEST:
        raise RequestError(f"the conditions have {len(text)} characters, more than {_LONGEST}")
    text = text.strip()
    found, at = [], 0
    while at < len(text):
        condition, at = _parse(text, at)
        found.append(condition)
        if len(found) > _MOST:
            raise RequestError(f"there are more than {_MOST} conditions")
        if at < len(text):
            joined = _AND.match(text, at)
            if joined is None or joined.end() == len(text):
                raise RequestError(f"{text[at : at + 40]!r} is not a condition: join conditions by 'and'")
            at = joined.end()
    return tuple(found)


def matches(conditions: Sequence[Condition], value: bytes | None) -> bool:
    """Return whether a value is JSON that meets all conditions."""
    if value is None:
        return False
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return False
    return all(one.holds(document) for one in conditions)


def _parse(text: str, at: int) -> tuple[Condition, int]:
    start = at
    path: list[str | int | None] = []
    if text[at : at + 2] in ("$.", "$["):
        at += 1
    while (step := _STEP.match(text, at)) is not None:
        name, place, quoted = step.groups()
        path.append(name if name else json.loads(quoted) if quoted else None if place == "*" else int(place))
        at = step.end()
    if not path:
        raise RequestError(f"{text[start : start + 40]!r} does not begin with a path, as in order.items[0].sku = 7")
    found = _OPERATOR.match(text, at)
    if found is None:
        return Condition(path, "", None, None), at
    value = _VALUE.match(text, found.end())
    if value is None:
        raise RequestError(f"no value follows {text[start : found.end()]!r}")
    told = value[0].rstrip()
    try:
        parsed = json.loads(told)
    except (ValueError, RecursionError):
        parsed = told
    return Condition(path, found[1], parsed, None if told.startswith('"') else told), value.end()


def _at(document: Any, path: Sequence[str | int | None]) -> Iterator[Any]:
    """Yield the values at a path; several ``[*]`` yield every combination."""
    level = [document]
    for step in path:
        if step is None:
            level = [element for one in level if isinstance(one, list) for element in one]
        elif isinstance(step, int):
            level = [one[step] for one in level if isinstance(one, list) and step < len(one)]
        else:
            level = [one[step] for one in level if isinstance(one, dict) and step in one]
    yield from level


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
