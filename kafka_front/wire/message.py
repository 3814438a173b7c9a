"""The base of all generated message classes."""

from __future__ import annotations


class Message:
    """A message that compares by its fields and has a readable form."""

    __slots__: tuple[str, ...] = ()
    __hash__ = None  # type: ignore[assignment]  # fields are mutable

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={_short(getattr(self, name))}" for name in self.__slots__)
        return f"{type(self).__qualname__}({fields})"


def _short(value: object) -> str:
    if isinstance(value, memoryview) or (isinstance(value, bytes | bytearray) and len(value) > 32):
        return f"<{len(value)} bytes>"
    return repr(value)
