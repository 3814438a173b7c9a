"""The workers of a machine as a cluster of processes (``anabranch serve --workers``), and the resources of each.

Worker 0 has what a single node would have: its id, its addresses, its store in ``sbp``. Worker k has an id that is
higher by k, addresses shifted by k steps, and its store in ``sbp-k``. All workers share the database, the placement
driver's state and the files of users. A store whose worker is gone, because there were once more workers, is served by
an existing worker; a single node serves all of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.net.address import Address
from bridges.node.settings.sections import SettingsError
from bridges.node.storage.data_dir import DataDirectory

if TYPE_CHECKING:
    from anabranch_kit.sql.notices import Notices

LEASE_S = 10.0
"""Seconds without a heartbeat after which a worker is taken for dead. Longer than between machines: the parent notices
at once that a process has ended, and restarts it, so it serves its partitions again sooner than another worker could.
"""

_STORE = re.compile(r"sbp-([1-9][0-9]*)")


class Worker(Struct, frozen=True):
    """One of the processes of a node.

    ``number`` of ``count``, from 0. ``directory``: held by their parent for all of them. ``notices``: their channel for
    notices of changes.
    """

    number: int
    count: int
    directory: DataDirectory
    notices: Notices


def store_of(directory: DataDirectory, number: int) -> Path:
    return directory.backend if number == 0 else directory.path / f"sbp-{number}"


def left_behind(directory: DataDirectory, number: int, count: int) -> list[int]:
    """Return the former workers whose stores worker ``number`` of ``count`` serves. Blocks. Raises OSError."""
    found = (_STORE.fullmatch(one.name) for one in directory.path.iterdir())
    gone = sorted(int(one[1]) for one in found if one is not None and int(one[1]) >= count)
    return [one for one in gone if one % count == number]


def add_number(name: str, number: int) -> str:
    """Return the name of what worker ``number`` has and the first worker has as ``name``."""
    return name if number == 0 else f"{name}-{number}"


def moved(address: Address, steps: int, step: int) -> Address:
    """Return an address shifted by ``steps`` workers; port 0 (any free port) if ``step`` is 0 or the first port is 0.

    Raises SettingsError if the port would be too high.
    """
    if steps == 0 or address.port == 0:
        return address
    port = address.port + steps * step if step else 0
    if port > 65535:
        raise SettingsError(f"worker {steps} would listen at port {port}: choose a smaller node.worker_port_step")
    return Address(address.host, port)
