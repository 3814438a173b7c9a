"""Failures of the shared log, told by one node to another: the class by its name, the sentence, what else it has."""

from __future__ import annotations

from typing import Any

from bridges import errors
from bridges.errors import LogError, LogUnavailable

Told = tuple[str, str, dict[str, Any]]
"""What MessagePack takes of an error."""

_KINDS: dict[str, type[LogError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, LogError)
}


def tell(error: LogError) -> Told:
    """An error as it is told. One that only this node knows is told as the nearest that all know."""
    kind = next(kind for kind in type(error).__mro__ if _KINDS.get(kind.__name__) is kind)
    if error.retriable and not kind.retriable:
        kind = LogUnavailable
    attributes = {name: value for name, value in vars(error).items() if name in _ATTRIBUTES}
    return kind.__name__, str(error), attributes


_ATTRIBUTES = frozenset(
    {"children", "end_offset", "end_position", "indexes", "last", "node_id", "offset", "position", "start"}
)
_TUPLES = frozenset({"children"})


def heard(told: Told) -> LogError:
    """The error that another node has told of."""
    name, message, attributes = told
    kind = _KINDS.get(name, LogError)
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    for attribute, value in attributes.items():
        setattr(error, attribute, tuple(value) if attribute in _TUPLES else value)
    return error
