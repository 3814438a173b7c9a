"""Errors of the shared log as messages between nodes: the name of the class, the sentence, and the attributes."""

from __future__ import annotations

from typing import Any

from bridges import errors
from bridges.errors import LogError, LogUnavailable

EncodedError = tuple[str, str, dict[str, Any]]
"""An error in a form that MessagePack can encode."""

_KINDS: dict[str, type[LogError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, LogError)
}


def encode_error(error: LogError) -> EncodedError:
    """Encode an error. A class that only this node knows is replaced by its nearest base that all nodes know."""
    kind = next(kind for kind in type(error).__mro__ if _KINDS.get(kind.__name__) is kind)
    if error.retriable and not kind.retriable:
        kind = LogUnavailable
    attributes = {name: value for name, value in vars(error).items() if name in _ATTRIBUTES}
    return kind.__name__, str(error), attributes


_ATTRIBUTES = frozenset(
    {"children", "end_offset", "end_position", "indexes", "last", "node_id", "offset", "position", "start"}
)
_TUPLES = frozenset({"children"})


def decode_error(encoded: EncodedError) -> LogError:
    """Decode an error of another node."""
    name, message, attributes = encoded
    kind = _KINDS.get(name, LogError)
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    for attribute, value in attributes.items():
        setattr(error, attribute, tuple(value) if attribute in _TUPLES else value)
    return error
