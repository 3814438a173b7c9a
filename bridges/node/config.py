"""Settings of a node: what they are, where they come from, and what is wrong with them.

Sources, strongest first: command-line flags (``--set key=value`` and the flags that stand for a key), environment
variables ``ANABRANCH_*`` (``__`` separates levels: ``ANABRANCH_KAFKA__NUM_PARTITIONS``), the file ``anabranch.toml``,
defaults. A front brings a section of its own, named like it. Each source is read into dotted keys with a note of where
the value stands, so that an error or the command ``anabranch config`` can name the very flag, variable or line's key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo

from bridges.auth.authenticator import AuthOptions
from bridges.catalog.config_types import InvalidConfig
from bridges.catalog.topic_config import validate
from bridges.node import tls_settings
from bridges.node.front import Front, check, installed
from bridges.node.quantities import parse_duration, parse_size
from bridges.node.sections import (
    AuthSettings,
    LimitSettings,
    LoggingSettings,
    LogSettings,
    NodeSettings,
    SbpSettings,
    Section,
    SettingsError,
    section,
)

PREFIX = "ANABRANCH_"
DEFAULT_FILE = "anabranch.toml"

_NOT_SETTINGS = frozenset({"ANABRANCH_NODE", "ANABRANCH_USER", "ANABRANCH_PASSWORD", "ANABRANCH_CONFIG"})
"""Variables of the command line itself: a node's address and user for client commands, and the settings file."""


def _listen(value: object) -> object:
    # Shells do not allow '-' in names of variables: ANABRANCH_LISTEN__SBP_PD means sbp-pd.
    if isinstance(value, dict):
        return {_listener(str(name)): address for name, address in value.items()}
    return value


def _tls(value: object) -> object:
    if isinstance(value, dict):
        values = {_tls_name(str(name)): str(one) for name, one in value.items()}
        tls_settings.check(values)
        return values
    return value


def _tls_name(name: str) -> str:
    listener, what = tls_settings.split(name)
    return f"{_listener(listener)}.{what}"


def _listener(name: str) -> str:
    # The dot of a version is the only one in a name.
    return name.replace("_", "-").replace(".", "-").replace("-v0-", "-v0.")


def _topic_defaults(value: object) -> object:
    # TOML numbers and booleans are as good as their text.
    if isinstance(value, dict):
        texts = {key: str(one).lower() if isinstance(one, bool) else str(one) for key, one in value.items()}
        try:
            return validate(texts)
        except InvalidConfig as error:
            raise ValueError(str(error)) from None
    return value


class Settings(Section):
    """Everything that can be set about a node; see docs/operations.md for the table.

    The class that :func:`load` uses has, besides, a field for the section of each front.
    """

    fronts: ClassVar[tuple[type[Front], ...]] = ()
    """The fronts whose sections are part of it."""

    data_dir: Path = Field(default=Path("anabranch-data"), description="Directory of everything the node keeps.")
    listen: Annotated[dict[str, str], BeforeValidator(_listen)] = Field(
        default_factory=dict,
        description="Address HOST:PORT of a listener: of a front, console, sbp-pd, sbp-range-server, sbp-v0.1; port 0: "
        "any free one.",
    )
    advertise: Annotated[dict[str, str], BeforeValidator(_listen)] = Field(
        default_factory=dict,
        description="Address HOST:PORT that clients of a listener are told, where it differs from the one listened on.",
    )
    tls: Annotated[dict[str, str], BeforeValidator(_tls)] = Field(
        default_factory=dict,
        description="TLS of a listener (not sbp-v0.1's): LISTENER.cert and LISTENER.key, PEM files; "
        "LISTENER.client_ca, the authority of clients' certificates; LISTENER.client, required (default) or optional.",
    )
    default_host: str = Field(
        default="127.0.0.1", min_length=1, description="Host that listeners without an address of their own listen on."
    )
    topic_defaults: Annotated[dict[str, str], BeforeValidator(_topic_defaults)] = Field(
        default_factory=dict,
        description="Defaults of topic configurations by their Kafka names, for instance retention.ms.",
    )
    node: NodeSettings = section()
    sbp: SbpSettings = section()
    log: LogSettings = section()
    limits: LimitSettings = section()
    auth: AuthSettings = section()
    logging: LoggingSettings = section()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.sbp.mode == "external" and not self.sbp.pd:
            raise ValueError("sbp.mode = external needs sbp.pd, the address of the placement driver")
        if bool(self.sbp.tls_cert) != bool(self.sbp.tls_key):
            raise ValueError("sbp.tls_cert and sbp.tls_key are needed together")
        if (self.sbp.tls_ca or self.sbp.tls_cert) and not self.sbp.tls:
            raise ValueError("sbp.tls_ca and sbp.tls_cert make no difference without sbp.tls = true")
        if self.sbp.dialect == "v0.1" and self.sbp.mode != "external":
            raise ValueError("sbp.dialect = v0.1 is for a backend elsewhere, with sbp.mode = external")
        if self.sbp.dialect == "v0.1" and self.sbp.flavor != "anabranch":
            raise ValueError(f"servers of {self.sbp.flavor} do not speak sbp.dialect = v0.1")
        return self

    @property
    def auth_options(self) -> AuthOptions:
        """Where users and keys lie, and what else is set of them."""
        auth = self.auth
        return AuthOptions(
            users_file=Path(auth.users_file or self.data_dir / "users.json"),
            keys_file=Path(auth.keys_file or self.data_dir / "token-keys.json"),
            required=auth.required,
            token_seconds=auth.token_ms // 1000,
            key_seconds=auth.key_ms // 1000,
        )

    def of(self, front: type[Front]) -> Section | None:
        """The section of a front; its defaults when the settings were made without it."""
        if front.settings is None:
            return None
        found = getattr(self, front.name, None)
        return found if isinstance(found, front.settings) else front.settings()


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as ``anabranch config`` and the documentation show it."""

    key: str
    value: str
    default: str
    origin: str
    description: str
    kind: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """Validated settings and the origin of every key that was given."""

    settings: Settings
    origins: Mapping[str, str]

    def table(self) -> list[Setting]:
        """Every setting with its value, default and origin; maps appear once for each entry that was given."""
        return list(_rows(self.settings, self.origins))


def load(
    flags: Mapping[str, str] | None = None,
    *,
    environ: Mapping[str, str],
    file: Path | None = None,
    directory: Path | None = None,
    fronts: Sequence[type[Front]] | None = None,
) -> Loaded:
    """Settings from all sources, with the sections of ``fronts`` (None: those installed).

    ``flags`` are dotted keys; ``file`` must exist when given, otherwise ``anabranch.toml`` in ``directory`` (the
    working directory) is read if it is there. Raises SettingsError that names every wrong value and where it stands.
    """
    model = _model(installed() if fronts is None else tuple(fronts))
    given: dict[str, tuple[Any, str]] = {}
    for layer in (_from_file(file, directory), _from_environment(environ), _from_flags(flags or {})):
        for key, value in layer.items():
            head, dot, name = key.partition(".")
            if dot and head == "tls":
                key = f"{head}.{_tls_name(name)}"
            given[f"{head}.{_listener(name)}" if dot and head in _LISTENER_MAPS else key] = value
    problems = [
        f"{where}: unknown setting {key!r}{_hint(key, model)}"
        for key, (_, where) in given.items()
        if not _known(key, model)
    ]
    if problems:
        raise SettingsError("\n".join(problems))
    nested: dict[str, Any] = {}
    for key, (value, _) in given.items():
        parts = _split(key)
        inner = nested
        for part in parts[:-1]:
            inner = inner.setdefault(part, {})
        inner[parts[-1]] = value
    try:
        settings = model.model_validate(nested)
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(error, given))) from None
    return Loaded(settings, {key: where for key, (_, where) in given.items()})


def schema() -> list[Setting]:
    """Every setting with its default: what docs/operations.md is generated from."""
    return list(_rows(_model(installed())(), {}))


@lru_cache
def _model(fronts: tuple[type[Front], ...]) -> type[Settings]:
    """The settings with a section for each front that has one. Raises FrontError."""
    check(fronts, Settings.model_fields, ())
    fields: Any = {front.name: (front.settings, section()) for front in fronts if front.settings is not None}
    model = create_model("Settings", __base__=Settings, __doc__=Settings.__doc__, **fields)
    model.fronts = fronts
    return model


# --- sources --------------------------------------------------------------------------------------------------------


def _from_file(file: Path | None, directory: Path | None) -> dict[str, tuple[Any, str]]:
    path = file or (directory or Path()) / DEFAULT_FILE
    if file is None and not path.exists():
        return {}
    import tomllib  # where there is a file

    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None
    return {key: (value, str(path)) for key, value in _flatten(document)}


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    for name, value in sorted(environ.items()):
        if name.startswith(PREFIX) and name not in _NOT_SETTINGS:
            found[name[len(PREFIX) :].lower().replace("__", ".")] = (value, f"environment {name}")
    return found


def _from_flags(flags: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    return {key: (value, "command line") for key, value in flags.items()}


# --- keys -----------------------------------------------------------------------------------------------------------


def _sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _sections(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, info


@lru_cache
def _fields(model: type[Settings]) -> dict[str, FieldInfo]:
    return dict(_sections(model))


_LISTENER_MAPS = frozenset({"listen", "advertise"})
_MAPS = _LISTENER_MAPS | {"topic_defaults", "tls"}


def _split(key: str) -> list[str]:
    """The path of a key; what follows the name of a map is one name, dots included."""
    head, dot, rest = key.partition(".")
    if dot and head in _MAPS:
        return [head, rest]
    return key.split(".")


def _known(key: str, model: type[Settings]) -> bool:
    head, dot, _ = key.partition(".")
    return (bool(dot) and head in _MAPS) or (key in _fields(model) and key not in _MAPS)


def _hint(key: str, model: type[Settings]) -> str:
    import difflib

    if key in _MAPS:
        return f" needs a name after it, as in {key}.NAME"
    close = difflib.get_close_matches(key, _fields(model), 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _explain(error: ValidationError, given: Mapping[str, tuple[Any, str]]) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        key = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if not key:  # about several settings together
            yield message
            continue
        value, where = given.get(key, (problem["input"], "settings"))
        if key in _MAPS:
            places = sorted({origin for name, (_, origin) in given.items() if name.startswith(f"{key}.")})
            yield f"{', '.join(places)}: {key}: {message}"
        else:
            yield f"{where}: {key} = {value!r}: {message}"


def _rows(settings: Settings, origins: Mapping[str, str]) -> Iterator[Setting]:
    current, defaults = dict(_flatten_model(settings)), dict(_flatten_model(type(settings)()))
    for key, info in sorted(_fields(type(settings)).items()):
        description = info.description or ""
        kind = _kind(info)
        if key not in _MAPS:
            origin = origins.get(key, "default")
            yield Setting(key, _text(current[key]), _text(defaults[key]), origin, description, kind)
            continue
        if not current[key]:
            yield Setting(f"{key}.NAME", "", "", "default", description, kind)
        for name, value in sorted(current[key].items()):
            entry = f"{key}.{name}"
            yield Setting(entry, _text(value), "", origins.get(entry, "default"), description, kind)


def _flatten_model(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    dumped = model.model_dump()
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _flatten_model(value, f"{prefix}{name}.")
        else:
            yield prefix + name, dumped[name]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _kind(info: FieldInfo) -> str:
    for extra in info.metadata:
        if isinstance(extra, BeforeValidator):
            if extra.func is parse_size:
                return "size"
            return "duration" if extra.func is parse_duration else "map"
    names = {int: "number", str: "text", bool: "true or false", Path: "path"}
    if isinstance(info.annotation, type):
        return names[info.annotation]
    return " or ".join(str(choice) for choice in get_args(info.annotation))
