"""Sections of settings that every process has, and what any section is made of: sizes, durations, the base class."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, field_validator

from bridges.net.address import Address
from bridges.node.quantities import format_duration, format_size, parse_duration, parse_size


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


class Section(BaseModel):
    """Settings that belong together; a front's is a subclass of its own."""

    # Built with the settings that they are part of, and alone only where they are used alone.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)


def section() -> Any:
    """For a field whose type is a section: it has its defaults, where none of its settings is given."""
    return Field(default={})


class NodeSettings(Section):
    id: int = Field(default=0, ge=0, le=2**31 - 1, description="Number of this node among its peers.")
    rack: str = Field(default="", description="Where the node stands; told to clients that prefer near nodes.")
    drain_timeout_ms: Duration = Field(
        default=10_000,
        description="How long a stopping node waits for requests in flight before it closes connections.",
    )
    check_interval_ms: Duration = Field(
        default=10_000, ge=10, description="How often committed positions and producers are looked at for expiry."
    )


class SbpSettings(Section):
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
    tls: bool = Field(
        default=False, description="Whether the placement driver and range servers elsewhere are reached with TLS."
    )
    tls_ca: str = Field(
        default="", description="Authority of their certificates, a PEM file; empty: those that the system trusts."
    )
    tls_cert: str = Field(
        default="", description="Certificate that is shown where they ask for one, a PEM file; with sbp.tls_key."
    )
    tls_key: str = Field(default="", description="Its key, a PEM file without a password.")
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


class LogSettings(Section):
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
    event_writers_per_partition: int = Field(
        default=100_000, ge=1, description="Writers per partition whose last event number is remembered."
    )
    event_writer_idle_ms: Duration = Field(
        default=16 * 86_400_000, ge=1, description="Time after which an idle writer of numbered events is forgotten."
    )
    seq_no_producers_per_partition: int = Field(
        default=100_000, ge=1, description="Producers per partition whose last seq_no is remembered."
    )
    seq_no_producer_idle_ms: Duration = Field(
        default=16 * 86_400_000, ge=1, description="Time after which an idle producer of seq_nos is forgotten."
    )
    transactions_per_partition: int = Field(
        default=100_000,
        ge=1,
        description="Open and aborted transactions that a partition keeps; beyond it none begins until it is trimmed.",
    )
    open_concurrency: int = Field(default=64, ge=1, description="Partitions opened at the same time.")
    retention_check_interval_ms: Duration = Field(
        default=300_000, ge=10, description="How often partitions are looked at for data past their retention."
    )


class LimitSettings(Section):
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
    translated_bytes: Size = Field(
        default=64 * 1024**2,
        description="Memory for batches translated for readers of another protocol.",
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


class AuthSettings(Section):
    required: bool = Field(
        default=False,
        description="Refuse clients that do not say who they are, with a password, a token or a certificate.",
    )
    open_health: bool = Field(
        default=True,
        description="Whether health and metrics (/healthz, /readyz, /metrics) are told to everybody all the same.",
    )
    users_file: str = Field(
        default="", description="File of users and what recognises their passwords; empty: users.json in data_dir."
    )
    keys_file: str = Field(
        default="",
        description="File of the keys that tokens are signed with, made if need be; empty: token-keys.json in "
        "data_dir. Nodes that share it take each other's tokens.",
    )
    token_ms: Duration = Field(
        default=12 * 3_600_000, ge=1000, description="How long a token is valid; clients get a new one in time."
    )
    key_ms: Duration = Field(
        default=30 * 86_400_000,
        ge=1000,
        description="Age at which a key gets a successor; it is accepted until its last token has ended.",
    )


class LoggingSettings(Section):
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
