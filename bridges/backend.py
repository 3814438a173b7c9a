"""The backend a node uses, started from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bridges.config import Settings
from bridges.front import Address

if TYPE_CHECKING:
    from sbp_back.embedded import Embedded

PD = "sbp-pd"
RANGE_SERVER = "sbp-range-server"
LISTENERS: Mapping[str, int] = {PD: 12378, RANGE_SERVER: 10911}
"""Listeners of the embedded backend and their usual ports."""


async def start_backend(
    settings: Settings, directory: Path, listen: Mapping[str, Address], on_failed: Callable[[str], None]
) -> Embedded:
    """Start range server and placement driver inside the node and return them with their client.

    ``listen`` has the addresses on which other programs reach them, if any. ``on_failed`` is called once, with a
    sentence, when the store can no longer promise durability. Raises StoreError or OSError.
    """
    from sbp_back.embedded import EmbeddedOptions, start_embedded
    from sbp_back.range_server.store.options import StoreOptions

    sbp = settings.sbp
    store = StoreOptions(
        segment_bytes=sbp.segment_bytes,
        durability=sbp.durability,
        group_max_bytes=sbp.group_max_bytes,
        retention_bytes=None if sbp.retention_bytes < 0 else sbp.retention_bytes,
        low_water_bytes=None if sbp.low_water_bytes < 0 else sbp.low_water_bytes,
    )
    options = EmbeddedOptions(
        store=store,
        listen={name: (address.host, address.port) for name, address in listen.items()},
        advertise={name: told for name, told in settings.advertise.items() if name in LISTENERS},
    )
    return await start_embedded(directory, options, on_failed)


def addresses(embedded: Embedded) -> dict[str, Address]:
    """Where the backend's listeners really listen."""
    return {name: Address(host, port) for name, (host, port) in embedded.addresses.items()}
