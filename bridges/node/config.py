"""Settings of a node: what they are, where they come from, and what is wrong with them.

Sources, strongest first: command-line flags (``--set key=value`` and the flags that stand for a key), environment
variables ``ANABRANCH_*`` (``__`` separates levels: ``ANABRANCH_KAFKA__NUM_PARTITIONS``), the file ``anabranch.toml``,
defaults. Each source is read into dotted keys with a note of where the value stands, so that an error or the command
``anabranch config`` can name the very flag, variable or line's key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from bridges.catalog.config_types import InvalidConfig
from bridges.catalog.topic_config import validate
from bridges.net.address import Address
from bridges.node.quantities import format_duration, format_size, parse_duration, parse_size

PREFIX = "ANABRANCH_"
DEFAULT_FILE = "anabranch.toml"

_NOT_SETTINGS = frozenset({"ANABRANCH_NODE", "ANABRANCH_CONFIG"})
"""Variables of the command line itself: the node's address for client commands, and the settings file."""


class SettingsError(Exception):
    """One or more settings are wrong; the message has a line for each, ready for an operator."""


Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size, return_type=str), Field(ge=0)]
"""Bytes; written as a number or like 64MiB."""
SizeOrNone = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size, return_type=str), Field(ge=-1)]
"""Bytes, or -1 for no limit."""
Duration = Annotated[
    int, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str), Field(ge=0)
]
"""Milliseconds; written as a number or like 30s, 5m, 7d."""


def _pd_addresses(value: object) -> object:
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        for part in parts:
            if Address.parse(part).port == 0:
                raise ValueError(f"{part!r} has no port to connect to")
        return ",".join(parts)
    return value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class NodeSettings(_Section):
    id: int = Field(default=0, ge=0, le=2**31 - 1, description="Number of this node among its peers.")
    rack: str = Field(default="", description="Where the node stands; told to clients that prefer near nodes.")
    drain_timeout_ms: Duration = Field(
        default=10_000,
        description="How long a stopping node waits for requests in flight before it closes connections.",
    )
    check_interval_ms: Duration = Field(
        default=10_000, ge=10, description="How often committed positions and producers are looked at for expiry."
    )


class SbpSettings(_Section):
    mode: Literal["embedded", "external"] = Field(
        default="embedded",
        description="Where data is kept: embedded runs range server and placement driver in the node, external uses "
        "those that sbp.pd leads to.",
    )
    pd: Annotated[str, BeforeValidator(_pd_addresses)] = Field(
        default="",
        description="Placement driver of an external backend, HOST:PORT; several nodes of one are separated by commas.",
    )
    flavor: Literal["anabranch", "elastic-stream"] = Field(
        default="anabranch",
        description="What an external backend runs. Other servers than Anabranch's are refused, unless they are said "
        "to be elastic-stream's, whose known faults are then worked around.",
    )
    dialect: Literal["0.2", "v0.1"] = Field(
        default="0.2",
        description="What an external backend speaks: 0.2, or v0.1, the specification document, which has no fencing.",
    )
    timeout_ms: Duration = Field(
        default=15_000,
        ge=100,
        description="How long an external backend may leave an append, a read or the opening of a partition without "
        "progress before clients are told to try again.",
    )
    heartbeat_ms: Duration = Field(
        default=3_000, ge=10, description="How often a range server reports to the placement driver."
    )
    alive_ms: Duration = Field(
        default=10_000,
        ge=10,
        description="Silence after which a placement driver gives a range server no new ranges.",
    )
    durability: Literal["fsync", "os"] = Field(
        default="fsync",
        description="What an acknowledgement means: fsync survives power loss, os only the end of the process: after a "
        "loss of power the log ends before the first thing that is missing, and the start warns of it.",
    )
    segment_bytes: Size = Field(default=256 * 1024**2, ge=1024**2, description="Size of the store's write-ahead files.")
    group_max_bytes: Size = Field(
        default=8 * 1024**2, ge=64 * 1024, description="Most bytes that are written and flushed together."
    )
    retention_bytes: SizeOrNone = Field(
        default=-1,
        description="Most bytes of all topics on disk; beyond it the oldest data is dropped; -1: no bound.",
    )
    max_connections: int = Field(
        default=2_000, ge=1, description="Most connections of each listener for SBP at the same time."
    )
    low_water_bytes: SizeOrNone = Field(
        default=-1,
        description="Free disk space below which appends are refused; reads go on. -1: a segment and 32 MiB.",
    )

    @field_validator("dialect", mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        # Listeners and documents call them sbp-0.2 and sbp-v0.1.
        return value.removeprefix("sbp-") if isinstance(value, str) else value


class LogSettings(_Section):
    tail_cache_bytes: Size = Field(
        default=32 * 1024**2,
        description="Memory for the newest batches of all partitions, from which most fetches are served.",
    )
    snapshot_bytes: Size = Field(
        default=64 * 1024**2,
        ge=1024**2,
        description="Bytes appended to a partition between snapshots of its state; fewer make recovery faster.",
    )
    max_producers_per_partition: int = Field(
        default=20_000, ge=1, description="Producers per partition whose repeated batches are recognised."
    )
    max_producers: int = Field(
        default=2_000_000,
        ge=1000,
        description="Producers remembered over all partitions, each once for each of its partitions; a million takes "
        "170 to 320 MB. Beyond it the longest idle of the partitions with most are forgotten.",
    )
    producer_idle_ms: Duration = Field(
        default=86_400_000, ge=1, description="Time after which an idle producer is forgotten."
    )
    open_concurrency: int = Field(default=64, ge=1, description="Partitions opened at the same time.")
    retention_check_interval_ms: Duration = Field(
        default=300_000, ge=10, description="How often partitions are looked at for data past their retention."
    )


class KafkaGroupSettings(_Section):
    initial_rebalance_delay_ms: Duration = Field(
        default=3_000, description="How long the first rebalance of an empty group waits for more members."
    )
    min_session_timeout_ms: Duration = Field(
        default=6_000, ge=1, description="Shortest session timeout a member may ask for."
    )
    max_session_timeout_ms: Duration = Field(
        default=1_800_000, ge=1, description="Longest session timeout a member may ask for."
    )
    max_rebalance_timeout_ms: Duration = Field(
        default=86_400_000,
        ge=1,
        description="Longest time a rebalance waits for members, whatever they ask for.",
    )
    max_size: int = Field(default=10_000, ge=1, description="Most members of a group.")
    max_groups: int = Field(
        default=100_000, ge=1, description="Most groups, with or without members, before no new one is taken."
    )
    max_bytes: Size = Field(
        default=16 * 1024**2,
        ge=1024,
        description="Most bytes that the members of a group may say of themselves, and that their leader may assign.",
    )
    offsets_retention_ms: Duration = Field(
        default=604_800_000, ge=1, description="How long positions of a group without members are kept."
    )


class KafkaSettings(_Section):
    auto_create_topics: bool = Field(default=True, description="Whether a topic that a client asks for is created.")
    num_partitions: int = Field(default=1, ge=1, description="Partitions of a topic whose creator does not say.")
    max_request_bytes: Size = Field(
        default=100 * 1024**2,
        ge=1024,
        le=2**31 - 1,
        description="Largest request accepted; a larger one ends its connection.",
    )
    fetch_max_bytes: Size = Field(default=55 * 1024**2, ge=1024, description="Most bytes one fetch is answered with.")
    fetch_max_wait_ms: Duration = Field(
        default=300_000, description="Longest time a fetch waits for data, whatever it asks for."
    )
    max_connections: int = Field(
        default=10_000,
        ge=1,
        description="Most connections at the same time; a further one takes the place of an idle one.",
    )
    connections_max_idle_ms: Duration = Field(
        default=600_000, ge=1, description="Time after which an idle connection is closed."
    )
    unacknowledged_bytes_per_connection: Size = Field(
        default=32 * 1024**2,
        ge=1024,
        description="Bytes a connection may have in flight before the node stops reading from it.",
    )
    offset_metadata_max_bytes: Size = Field(
        default=4096, description="Longest text a consumer may attach to a position."
    )
    fetch_sessions: int = Field(default=1_000, ge=0, description="Most incremental fetch sessions kept.")
    fetch_session_partitions: int = Field(
        default=500_000,
        ge=10,
        description="Most partitions that all incremental fetch sessions remember; one of them a tenth of it.",
    )
    transaction_max_timeout_ms: Duration = Field(
        default=900_000, ge=1, description="Longest transaction a producer may ask for."
    )
    group: KafkaGroupSettings = KafkaGroupSettings()


class LimitSettings(_Section):
    max_partitions: int = Field(default=100_000, ge=1, description="Most partitions of all topics together.")
    max_partitions_per_topic: int = Field(default=10_000, ge=1, description="Most partitions of one topic.")
    connections_memory_bytes: Size = Field(
        default=256 * 1024**2,
        ge=1024**2,
        description="Memory for all that connections have under way: requests, answers that were not taken, reads.",
    )
    batch_records: int = Field(
        default=250_000,
        ge=1,
        description="Most records of one batch; producers that can split a larger one do. 1 MiB holds fewer.",
    )
    batch_inflated_bytes: Size = Field(
        default=128 * 1024**2,
        ge=1024**2,
        description="Most bytes a batch is decompressed to when its records must be looked at.",
    )
    http_line_bytes: Size = Field(
        default=16 * 1024**2, ge=1024, description="Longest line accepted in records sent to the HTTP interface."
    )
    http_connections: int = Field(
        default=1_000, ge=1, description="Most connections to the console address at the same time."
    )
    http_request_ms: Duration = Field(
        default=60_000,
        ge=100,
        description="How long a connection to the console address may go without a request in progress.",
    )
    group_lag_series: int = Field(
        default=10_000,
        ge=0,
        description="Most time series of the metric of lag, one for each position of a group; small groups come first.",
    )


class LoggingSettings(_Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least important level logged."
    )
    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="json gives one object per line; auto is console on a terminal and json elsewhere."
    )
    repeated_lines: int = Field(
        default=20,
        ge=1,
        description="Most lines in ten seconds that say the same but for their fields; the others are counted.",
    )


def _listen(value: object) -> object:
    # Shells do not allow '-' in names of variables: ANABRANCH_LISTEN__SBP_PD means sbp-pd.
    if isinstance(value, dict):
        return {_listener(str(name)): address for name, address in value.items()}
    return value


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


class Settings(_Section):
    """Everything that can be set about a node; see docs/operations.md for the table."""

    data_dir: Path = Field(default=Path("anabranch-data"), description="Directory of everything the node keeps.")
    listen: Annotated[dict[str, str], BeforeValidator(_listen)] = Field(
        default_factory=dict,
        description="Address HOST:PORT of a listener (kafka, console, sbp-pd, sbp-range-server, sbp-v0.1); port 0: any "
        "free one.",
    )
    advertise: Annotated[dict[str, str], BeforeValidator(_listen)] = Field(
        default_factory=dict,
        description="Address HOST:PORT that clients of a listener are told, where it differs from the one listened on.",
    )
    default_host: str = Field(
        default="127.0.0.1", min_length=1, description="Host that listeners without an address of their own listen on."
    )
    topic_defaults: Annotated[dict[str, str], BeforeValidator(_topic_defaults)] = Field(
        default_factory=dict,
        description="Defaults of topic configurations by their Kafka names, for instance retention.ms.",
    )
    node: NodeSettings = NodeSettings()
    sbp: SbpSettings = SbpSettings()
    log: LogSettings = LogSettings()
    kafka: KafkaSettings = KafkaSettings()
    limits: LimitSettings = LimitSettings()
    logging: LoggingSettings = LoggingSettings()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.sbp.mode == "external" and not self.sbp.pd:
            raise ValueError("sbp.mode = external needs sbp.pd, the address of the placement driver")
        if self.sbp.dialect == "v0.1" and self.sbp.mode != "external":
            raise ValueError("sbp.dialect = v0.1 is for a backend elsewhere, with sbp.mode = external")
        if self.sbp.dialect == "v0.1" and self.sbp.flavor != "anabranch":
            raise ValueError(f"servers of {self.sbp.flavor} do not speak sbp.dialect = v0.1")
        return self


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
) -> Loaded:
    """Settings from all sources.

    ``flags`` are dotted keys; ``file`` must exist when given, otherwise ``anabranch.toml`` in ``directory`` (the
    working directory) is read if it is there. Raises SettingsError that names every wrong value and where it stands.
    """
    given: dict[str, tuple[Any, str]] = {}
    for layer in (_from_file(file, directory), _from_environment(environ), _from_flags(flags or {})):
        for key, value in layer.items():
            head, dot, name = key.partition(".")
            given[f"{head}.{_listener(name)}" if dot and head in _LISTENER_MAPS else key] = value
    problems = [f"{where}: unknown setting {key!r}{_hint(key)}" for key, (_, where) in given.items() if not _known(key)]
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
        settings = Settings.model_validate(nested)
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(error, given))) from None
    return Loaded(settings, {key: where for key, (_, where) in given.items()})


def schema() -> list[Setting]:
    """Every setting with its default: what docs/operations.md is generated from."""
    return list(_rows(Settings(), {}))


# --- sources --------------------------------------------------------------------------------------------------------


def _from_file(file: Path | None, directory: Path | None) -> dict[str, tuple[Any, str]]:
    path = file or (directory or Path()) / DEFAULT_FILE
    if file is None and not path.exists():
        return {}
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


_FIELDS = dict(_sections(Settings))
_LISTENER_MAPS = frozenset({"listen", "advertise"})
_MAPS = _LISTENER_MAPS | {"topic_defaults"}


def _split(key: str) -> list[str]:
    """The path of a key; what follows the name of a map is one name, dots included."""
    head, dot, rest = key.partition(".")
    if dot and head in _MAPS:
        return [head, rest]
    return key.split(".")


def _known(key: str) -> bool:
    head, dot, _ = key.partition(".")
    return (bool(dot) and head in _MAPS) or (key in _FIELDS and key not in _MAPS)


def _hint(key: str) -> str:
    import difflib

    if key in _MAPS:
        return f" needs a name after it, as in {key}.NAME"
    close = difflib.get_close_matches(key, _FIELDS, 1)
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
    current, defaults = dict(_flatten_model(settings)), dict(_flatten_model(Settings()))
    for key, info in sorted(_FIELDS.items()):
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
