"""The building blocks of sections of settings: classes with a field per setting, which declares its possible values.

A section is an immutable struct. The declarations of its fields (:class:`Spec`) are kept beside it. Annotations are
evaluated only when a value is given or shown: a start usually has few given values and many sections.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import urlsplit

from msgspec import Struct, StructMeta

from bridges.node.settings.quantities import format_duration, format_size, parse_duration, parse_size

T = TypeVar("T")

_NUMBER = r"([+-]?[0-9]+(?:_[0-9]+)*)(?:\.0+)?"
_TRUE = frozenset({"true", "yes", "on", "1", "y", "t"})
_FALSE = frozenset({"false", "no", "off", "0", "n", "f"})


class Kind(Struct, frozen=True):
    """The notation of a type's values: ``parse`` makes a value from text or from a file's value, or raises ValueError.

    ``text`` returns how a value is shown. ``least``: lower bound of all values of the kind. With ``secret``, an invalid
    value is not shown.
    """

    name: str
    parse: Callable[[Any], Any]
    text: Callable[[Any], str] = str
    least: int | None = None
    secret: bool = False


class Spec(Struct, frozen=True):
    """The declaration of a setting besides its type; see :func:`setting`."""

    default: Any
    description: str
    ge: int | None
    le: int | None
    read: Callable[[object], object] | None

    def value(self, kind: Kind, given: object) -> Any:
        """Return the value that is meant by ``given``. Raises ValueError with what it must be."""
        value = kind.parse(given if self.read is None else self.read(given))
        least = kind.least if self.ge is None else self.ge
        if least is not None and value < least:
            raise ValueError(f"must be at least {kind.text(least)}")
        if self.le is not None and value > self.le:
            raise ValueError(f"must be at most {kind.text(self.le)}")
        return value


def setting(
    default: T,
    *,
    description: str,
    ge: int | None = None,
    le: int | None = None,
    read: Callable[[object], object] | None = None,
) -> T:
    """Declare a field of a section: its default, a sentence for the documentation, the least and the largest value.

    ``read`` gets the given value before its type is checked, and returns its replacement. It raises ValueError with
    words that follow the value: "must be ...".
    """
    return cast("T", Spec(default, description, ge, le, read))


class _SectionMeta(StructMeta):
    """Makes classes whose fields have the defaults of their settings."""

    def __new__(
        mcls: type[_SectionMeta], name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> _SectionMeta:
        own = {key: one for key, one in namespace.items() if isinstance(one, Spec) or type(type(one)) is mcls}
        inherited = {key: one for base in reversed(bases) for key, one in getattr(base, "__settings__", {}).items()}
        defaults = {key: one.default for key, one in own.items() if isinstance(one, Spec)}
        added = {"__settings__": inherited | own}
        made = super().__new__(mcls, name, bases, namespace | defaults | added, kw_only=True, **options)
        if others := set(made.__struct_fields__) - added["__settings__"].keys():
            raise TypeError(f"{name}.{min(others)} is no setting: it is not made by setting()")
        return made


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Section(Struct, metaclass=_SectionMeta, frozen=True):
    """A group of related settings; each front's is a subclass.

    A former setting whose value is now fixed is a constant of the class: a user who still sets it gets a warning.

    Fields are annotated with ``bool``, ``int``, ``str``, ``Path``, a ``Literal`` of texts, or one of the types below,
    and made by :func:`setting`; a field that is a section itself has an object of it as its default.
    """

    __settings__: ClassVar[Mapping[str, Spec | Section]]


Size = Annotated[int, Kind("size", parse_size, format_size, 0)]
"""Bytes; written as a number or like 64MiB."""
SizeOrNone = Annotated[int, Kind("size", parse_size, format_size, -1)]
"""Bytes, or -1 for no limit."""
Duration = Annotated[int, Kind("duration", parse_duration, format_duration, 0)]
"""Milliseconds; written as a number or like 30s, 5m, 7d."""


def _database(given: object) -> str:
    url = _text(given)
    try:
        parts = urlsplit(url)
        wrong = url and (parts.scheme not in ("postgresql", "postgres") or parts.query.startswith("?"))
    except ValueError:
        wrong = True
    if wrong:
        raise ValueError("must be like postgresql://USER@HOST/DATABASE")
    return url


def shown_url(url: str) -> str:
    """Return a URL without its password."""
    parts = urlsplit(url)
    who, at, where = parts.netloc.rpartition("@")
    name, colon, _ = who.partition(":")
    query = "&".join(
        f"{one.partition('=')[0]}=***" if "password" in one else one for one in parts.query.split("&") if one
    )
    return parts._replace(netloc=f"{name}{colon and ':***'}{at}{where}", query=query).geturl()


DatabaseUrl = Annotated[str, Kind("URL", _database, shown_url, secret=True)]
"""URL of a PostgreSQL database, shown without its password."""


def _http(given: object) -> str:
    url = _text(given)
    try:
        parts = urlsplit(url)
        wrong = url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment)
    except ValueError:
        wrong = True
    if wrong:
        raise ValueError("must be like https://USER:PASSWORD@HOST:PORT/PATH")
    return url


HttpUrl = Annotated[str, Kind("URL", _http, shown_url, secret=True)]
"""URL of a server that is asked over HTTP, shown without its password."""


def settings_of(section: type[Section]) -> Mapping[str, Spec | Section]:
    """Return the fields of a section by name; a field that is a section itself with its default."""
    return section.__settings__


def kind_of(section: type[Section], name: str) -> Kind:
    """Return the kind of a field's values, from its annotation."""
    return _kinds(section)[name]


def fixed_at(section: type[Section], name: str) -> str | None:
    """Return the value of a section's constant in the notation of settings, None if there is no constant of
    that name.
    """
    value = vars(section).get(name)
    if name in settings_of(section) or not isinstance(value, int):
        return None
    (hint,) = get_args(get_type_hints(section, include_extras=True)[name])
    return _kind(hint).text(value)


@lru_cache
def _kinds(section: type[Section]) -> dict[str, Kind]:
    hints = get_type_hints(section, include_extras=True)
    return {name: _kind(hints[name]) for name, spec in settings_of(section).items() if isinstance(spec, Spec)}


def _kind(hint: Any) -> Kind:
    origin = get_origin(hint)
    if origin is Annotated:
        return next(extra for extra in hint.__metadata__ if isinstance(extra, Kind))
    if origin is Literal:
        return _choice(get_args(hint))
    if (plain := _PLAIN.get(origin or hint)) is None:
        raise TypeError(f"a setting cannot be {hint}")
    return plain


def _number(given: object) -> int:
    if isinstance(given, str) and (match := re.fullmatch(_NUMBER, given.strip())):
        return int(match[1])
    if isinstance(given, float) and given.is_integer():
        return int(given)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    raise ValueError("must be a whole number")


def _text(given: object) -> str:
    if isinstance(given, str):
        return given
    raise ValueError("must be text")


def true_or_false(given: object) -> bool:
    word = str(given).lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("must be true or false")


def _choice(choices: tuple[str, ...]) -> Kind:
    either = " or ".join(choices)

    def parse(given: object) -> str:
        if isinstance(given, str) and given in choices:
            return given
        raise ValueError(f"must be {either}, as text")

    return Kind(either, parse)


_PLAIN = {
    int: Kind("number", _number),
    str: Kind("text", _text),
    bool: Kind("true or false", true_or_false, lambda value: "true" if value else "false"),
    Path: Kind("path", lambda given: Path(_text(given))),
    dict: Kind("map", dict),
}
