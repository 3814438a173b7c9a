"""Loading of a node's settings: their sources, validation, and origins.

Sources, strongest first: command-line flags (``--set key=value`` and the flags that stand for a key), environment
variables ``ANABRANCH_*`` (``__`` separates levels: ``ANABRANCH_KAFKA__NUM_PARTITIONS``), the file ``anabranch.toml``,
defaults. A front adds a section with its own name. Each source is read into dotted keys that record where the value
comes from, so that an error or the command ``anabranch config`` can name the exact flag, variable or key of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import new_class
from typing import Any, ClassVar, TypeVar, cast

from msgspec import Struct

from anabranch_kit.net.address import Address
from bridges.auth.authenticator import AuthOptions
from bridges.auth.external.kerberos import KerberosOptions
from bridges.auth.external.oauth import OAuthOptions
from bridges.backends import OURS, BackendError, spoken
from bridges.catalog.config_types import InvalidConfig
from bridges.catalog.topics.config import validate
from bridges.http.own_names import OwnNames
from bridges.node.front import Front, check, installed
from bridges.node.settings import tls as tls_settings
from bridges.node.settings.sections import (
    AuthSettings,
    ClusterSettings,
    LimitSettings,
    LoggingSettings,
    LogSettings,
    MigrateSettings,
    NodeSettings,
    SbpSettings,
    SchemaSettings,
    SettingsError,
)
from bridges.node.settings.setting import Kind, Section, Spec, fixed_at, kind_of, setting, settings_of, true_or_false

S = TypeVar("S", bound=Section)

PREFIX = "ANABRANCH_"
_VARIABLE = "environment "
"""Prefix of the origin of a value from a variable."""
DEFAULT_FILE = "anabranch.toml"

_NOT_SETTINGS = frozenset(
    f"{PREFIX}{name}"
    for name in ("NODE", "USER", "PASSWORD", "CONFIG", "SOURCE_OPTIONS", "TARGET_OPTIONS", "IMAGE", "ENDPOINT")
)
"""Variables that are not settings: a node's address and user for client commands, the settings file, options of what
the pipeline's jobs read and write, the image of compose/, and the node of Spark's examples.
"""


def _tls(value: object) -> object:
    if isinstance(value, dict):
        value = {name: str(one) for name, one in value.items()}
        tls_settings.check(value)
    return value


def _auth_required(value: object) -> object:
    if isinstance(value, dict):
        return {name: str(true_or_false(one)).lower() for name, one in value.items()}
    return value


def _tls_name(name: str) -> str:
    listener, what = tls_settings.split(name)
    return f"{_listener(listener)}.{what}"


def _listener(name: str) -> str:
    # Shells do not allow '-' in names of variables, so ANABRANCH_LISTEN__SBP_PD means sbp-pd. The only dot in a name is
    # that of a version.
    return name.replace("_", "-").replace(".", "-").replace("-v0-", "-v0.")


def _host(value: object) -> object:
    if value == "":
        raise ValueError("must not be empty")
    return value


def _topic_defaults(value: object) -> object:
    # TOML numbers and booleans are accepted as their text.
    if isinstance(value, dict):
        texts = {key: str(one).lower() if isinstance(one, bool) else str(one) for key, one in value.items()}
        try:
            return validate(texts)
        except InvalidConfig as error:
            raise ValueError(str(error)) from None
    return value


class Settings(Section):
    """All settings of a node; see docs/operations.md for the table.

    The class that :func:`load` uses also has a field for the section of each front.
    """

    fronts: ClassVar[tuple[type[Front], ...]] = ()
    """The fronts with a section in these settings."""

    data_dir: Path = setting(Path("anabranch-data"), description="Directory for all data of the node.")
    listen: dict[str, str] = setting(
        {},
        description="Address HOST:PORT of the listener NAME: the name of a front, console, sbp-pd or sbp-range-server. "
        "A further listener of a front has the front's name with a suffix, such as kafka-external. Port 0: "
        "any free port.",
    )
    advertise: dict[str, str] = setting(
        {},
        description="Address HOST:PORT that the listener NAME gives to its clients. Unset: the address it listens on.",
    )
    tls: dict[str, str] = setting(
        {},
        read=_tls,
        description="TLS of a listener. LISTENER.cert and LISTENER.key: PEM files with certificate and key. "
        "LISTENER.client_ca: PEM file with the authority of client certificates. LISTENER.client: required "
        "(default) or optional. Unset: no TLS.",
    )
    auth_required: dict[str, str] = setting(
        {},
        read=_auth_required,
        description="Overrides auth.required for the listener NAME: true or false.",
    )
    default_host: str = setting(
        "127.0.0.1", read=_host, description="Host that listeners without an address of their own listen on."
    )
    topic_defaults: dict[str, str] = setting(
        {},
        read=_topic_defaults,
        description="Default of the topic configuration NAME. Names are Kafka's, for instance retention.ms.",
    )
    node: NodeSettings = NodeSettings()
    sbp: SbpSettings = SbpSettings()
    cluster: ClusterSettings = ClusterSettings()
    log: LogSettings = LogSettings()
    limits: LimitSettings = LimitSettings()
    migrate: MigrateSettings = MigrateSettings()
    auth: AuthSettings = AuthSettings()
    schemas: SchemaSettings = SchemaSettings()
    logging: LoggingSettings = LoggingSettings()

    @property
    def auth_options(self) -> AuthOptions:
        """The options of authentication: the files of users and keys, and the other settings."""
        auth = self.auth
        return AuthOptions(
            users_file=Path(auth.users_file or self.data_dir / "users.json"),
            keys_file=Path(auth.keys_file or self.data_dir / "token-keys.json"),
            required=auth.required,
            at={name: text == "true" for name, text in self.auth_required.items()},
            token_seconds=auth.token_ms // 1000,
            key_seconds=auth.key_ms // 1000,
            oauth=OAuthOptions(
                auth.oauth_keys,
                auth.oauth_issuer,
                auth.oauth_audience,
                auth.oauth_claim,
                auth.oauth_skew_ms // 1000,
                auth.oauth_refresh_ms // 1000,
            )
            if auth.oauth_keys
            else None,
            kerberos=KerberosOptions(auth.kerberos_keytab, auth.kerberos_rules) if auth.kerberos_keytab else None,
        )

    @property
    def ticket_seconds(self) -> int:
        """Seconds for which tickets for the backend are valid: not longer than their signing keys are known."""
        return max(1, min(self.sbp.ticket_ms, self.auth.token_ms) // 1000)

    @property
    def super_users(self) -> frozenset[str]:
        """The principals that may do everything, as KIND:NAME."""
        return frozenset(name.strip() for name in self.auth.super_users.split(";") if name.strip())

    def own_names(self, listener: str) -> OwnNames:
        """Return the host names under which browsers may ask an HTTP listener, besides addresses."""
        hosts = [self.default_host]
        for told in (self.listen, self.advertise):
            with suppress(ValueError):  # opening the listener reports the error
                hosts.append(Address.parse(told.get(listener, ""), self.default_host).host)
        return OwnNames(hosts, self.node.http_names.split(","))

    def find_section(self, front: type[Front]) -> Section | None:
        """Return the section of a front, or its defaults if the settings were made without the front."""
        if front.settings is None:
            return None
        found = getattr(self, front.name, None)
        return found if isinstance(found, front.settings) else front.settings()


class Setting(Struct, frozen=True):
    """A setting as ``anabranch config`` and the documentation show it."""

    key: str
    value: str
    default: str
    origin: str
    description: str
    kind: str


class Loaded(Struct, frozen=True):
    """Validated settings, with the origin of every given key, and warnings about variables that are no settings."""

    settings: Settings
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    def table(self) -> list[Setting]:
        """Return every setting with its value, default and origin; a map has a row per given entry."""
        return list(_rows(self.settings, self.origins))


def load(
    flags: Mapping[str, str] | None = None,
    *,
    environ: Mapping[str, str],
    file: Path | None = None,
    directory: Path | None = None,
    fronts: Sequence[type[Front]] | None = None,
) -> Loaded:
    """Load the settings from all sources, with the sections of ``fronts`` (None: those installed).

    ``flags`` are dotted keys. ``file`` must exist if it is given; by default ``anabranch.toml`` in ``directory`` (the
    working directory) is read if it exists. Raises SettingsError that names every wrong value and its origin.
    """
    model = _model(installed() if fronts is None else tuple(fronts))
    given: dict[str, tuple[Any, str]] = {}
    for layer in (_from_file(file, directory), _from_environment(environ), _from_flags(flags or {})):
        for key, value in layer.items():
            head, dot, name = key.partition(".")
            if dot and head == "tls":
                key = f"{head}.{_tls_name(name)}"
            given[f"{head}.{_listener(name)}" if dot and head in _LISTENER_MAPS else key] = value
    problems: list[str] = []
    warnings: list[str] = []
    for key, (_, where) in [*given.items()]:
        if (fixed := _fixed(key, model)) is not None:
            warnings.append(f"{where}: {key} is fixed at {fixed}")
            del given[key]
        elif not _is_known(key, model):
            # Kubernetes sets ANABRANCH_PORT and other variables for a service with that name.
            told = warnings if where.startswith(_VARIABLE) else problems
            told.append(f"{where}: unknown setting {key!r}{_hint(key, model)}")
            del given[key]
    if problems:
        raise SettingsError("\n".join(problems))
    values, problems = _values(given, model)
    if problems:
        raise SettingsError("\n".join(problems))
    settings = _build(model, values)
    if problems := list(_contradictions(settings.sbp)):
        raise SettingsError("\n".join(problems))
    return Loaded(settings, {key: where for key, (_, where) in given.items()}, tuple(warnings))


def schema() -> list[Setting]:
    """Return every setting with its default; docs/operations.md is generated from it."""
    return list(_rows(_model(installed())(), {}))


@lru_cache
def _model(fronts: tuple[type[Front], ...]) -> type[Settings]:
    """Return the settings class with a section for each front that has one. Raises FrontError."""
    check(fronts, Settings.__struct_fields__, ())
    kinds = {front.name: front.settings for front in fronts if front.settings is not None}
    about = {"__module__": __name__, "__doc__": Settings.__doc__, "__annotations__": kinds, "fronts": fronts}
    sections = {name: kind() for name, kind in kinds.items()}
    return cast(
        "type[Settings]", new_class("Settings", (Settings,), exec_body=lambda body: body.update(about, **sections))
    )


# --- sources --------------------------------------------------------------------------------------------------------


def _from_file(file: Path | None, directory: Path | None) -> dict[str, tuple[Any, str]]:
    path = file or (directory or Path()) / DEFAULT_FILE
    if file is None and not path.exists():
        return {}
    import tomllib  # imported only with a file

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
            found[name[len(PREFIX) :].lower().replace("__", ".")] = (value, f"{_VARIABLE}{name}")
    return found


def _from_flags(flags: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    return {key: (value, "command line") for key, value in flags.items()}


# --- keys -----------------------------------------------------------------------------------------------------------


class _Field(Struct, frozen=True):
    """A setting and its place: its section, and the path from the settings to the section's object."""

    section: type[Section]
    path: tuple[str, ...]
    name: str
    spec: Spec

    @property
    def kind(self) -> Kind:
        return kind_of(self.section, self.name)

    def value(self, given: object) -> Any:
        """Return the value that is meant by ``given``. Raises ValueError with what it must be."""
        return self.spec.value(self.kind, given)

    def read_from(self, settings: Section) -> Any:
        """Return the value of this setting in ``settings``."""
        for part in self.path:
            settings = getattr(settings, part)
        return getattr(settings, self.name)


def _leaves(section: type[Section], path: tuple[str, ...] = ()) -> Iterator[tuple[str, _Field]]:
    for name, one in settings_of(section).items():
        if isinstance(one, Section):
            yield from _leaves(type(one), (*path, name))
        else:
            yield ".".join((*path, name)), _Field(section, path, name, one)


@lru_cache
def _fields(model: type[Settings]) -> dict[str, _Field]:
    return dict(_leaves(model))


_ADDRESS_MAPS = frozenset({"listen", "advertise"})
_LISTENER_MAPS = _ADDRESS_MAPS | {"auth_required"}
_MAPS = _LISTENER_MAPS | {"topic_defaults", "tls"}


def _is_known(key: str, model: type[Settings]) -> bool:
    head, dot, _ = key.partition(".")
    return (bool(dot) and head in _MAPS) or (key in _fields(model) and key not in _MAPS)


def _fixed(key: str, model: type[Settings]) -> str | None:
    """Return the constant value of a former setting, None for any other key."""
    section: type[Section] = model
    *path, name = key.split(".")
    for part in path:
        inner = settings_of(section).get(part)
        if not isinstance(inner, Section):
            return None
        section = type(inner)
    return fixed_at(section, name)


def _hint(key: str, model: type[Settings]) -> str:
    import difflib

    if key in _MAPS:
        return f" needs a name after it, as in {key}.NAME"
    close = difflib.get_close_matches(key, _fields(model), 1)
    return f" (did you mean {close[0]}?)" if close else ""


# --- values ---------------------------------------------------------------------------------------------------------


def _values(given: Mapping[str, tuple[Any, str]], model: type[Settings]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the given keys, with a map's entries under its name, and the problems with the others."""
    fields = _fields(model)
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, (value, where) in given.items():
        head, _, name = key.partition(".")  # for a map's entry: the rest is a single name, dots included
        if head not in _MAPS:
            try:
                values[key] = fields[key].value(value)
            except ValueError as error:
                told = key if fields[key].kind.secret else f"{key} = {value!r}"
                problems.append(f"{where}: {told}: {error}")
        elif head in _ADDRESS_MAPS and not isinstance(value, str):
            problems.append(f"{where}: {key} = {value!r}: must be text")
        else:
            values.setdefault(head, {})[name] = value
    for key in sorted(_MAPS & values.keys()):
        try:
            values[key] = fields[key].value(values[key])
        except ValueError as error:
            places = sorted({where for name, (_, where) in given.items() if name.startswith(f"{key}.")})
            problems.append(f"{', '.join(places)}: {key}: {error}")
    return values, problems


def _contradictions(sbp: SbpSettings) -> Iterator[str]:
    """Yield the problems of settings that are valid by themselves but contradict each other."""
    if sbp.mode == "external" and not sbp.pd:
        yield "sbp.mode = external needs sbp.pd, the address of the placement driver"
    if bool(sbp.tls_cert) != bool(sbp.tls_key):
        yield "sbp.tls_cert and sbp.tls_key are needed together"
    if (sbp.tls_ca or sbp.tls_cert) and not sbp.tls:
        yield "sbp.tls_ca and sbp.tls_cert make no difference without sbp.tls = true"
    if (sbp.flavor, sbp.dialect) == OURS:
        return
    try:
        known = spoken()
    except BackendError as error:
        yield str(error)
        return
    if (sbp.flavor, sbp.dialect) not in known:
        kinds = ", ".join(f"{flavor} with {dialect}" for flavor, dialect in known)
        yield f"no servers of sbp.flavor = {sbp.flavor} speak sbp.dialect = {sbp.dialect}; there are {kinds}"
    if sbp.dialect != OURS[1] and sbp.mode != "external":
        yield f"sbp.dialect = {sbp.dialect} is for a backend elsewhere, with sbp.mode = external"
    if sbp.tickets and sbp.mode == "external":
        yield "sbp.tickets is for servers of Anabranch's that speak sbp.dialect = 0.2: others know no tickets"


def _build(section: type[S], values: Mapping[str, Any], prefix: str = "") -> S:
    """Build a section from values by key, with defaults for all others."""
    given: dict[str, Any] = {}
    for name, one in settings_of(section).items():
        if isinstance(one, Section):
            given[name] = _build(type(one), values, f"{prefix}{name}.")
        elif prefix + name in values:
            given[name] = values[prefix + name]
    return section(**given)


def _rows(settings: Settings, origins: Mapping[str, str]) -> Iterator[Setting]:
    for key, field in sorted(_fields(type(settings)).items()):
        kind, description, value = field.kind, field.spec.description, field.read_from(settings)
        if key not in _MAPS:
            origin = origins.get(key, "default")
            yield Setting(key, kind.text(value), kind.text(field.spec.default), origin, description, kind.name)
            continue
        if not value:
            yield Setting(f"{key}.NAME", "", "", "default", description, kind.name)
        for name, text in sorted(value.items()):
            entry = f"{key}.{name}"
            yield Setting(entry, text, "", origins.get(entry, "default"), description, kind.name)
