"""Several processes of one machine as one cluster (``anabranch serve --workers``): what each of them is given.

Worker 0 is what a node by itself would be: its id, its addresses, its store in ``sbp``. Worker k has the id k more,
addresses that many steps further, and its store in ``sbp-k``. The database, the placement driver's state and the files
of users are all workers'. A store whose worker is not there, since there were more of them once, is served by one that
is; a node by itself serves all of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.net.address import Address
from bridges.node.data_dir import DataDirectory
from bridges.node.sections import SettingsError

if TYPE_CHECKING:
    from anabranch_kit.sql.notices import Notices

LEASE_S = 10.0
"""Without a heartbeat for so long a worker is taken for dead. Longer than among machines: the parent knows at once that
a process has ended, and starts it again, which serves its partitions sooner than anybody else could."""

_STORE = re.compile(r"sbp-([1-9][0-9]*)")


class Worker(Struct, frozen=True):
    """``number`` of ``count`` processes, from 0; ``directory`` is held by their parent for all of them; ``notices``:
    by which they tell each other of changes."""

    number: int
    count: int
    directory: DataDirectory
    notices: Notices


def store_of(directory: DataDirectory, number: int) -> Path:
    """Where worker ``number`` has its store."""
    return directory.backend if number == 0 else directory.path / f"sbp-{number}"


def left_behind(directory: DataDirectory, number: int, count: int) -> list[int]:
    """Workers that are no more, whose stores worker ``number`` of ``count`` serves. Blocks. Raises OSError."""
    found = (_STORE.fullmatch(one.name) for one in directory.path.iterdir())
    gone = sorted(int(one[1]) for one in found if one is not None and int(one[1]) >= count)
    return [one for one in gone if one % count == number]


def object_log(name: str, number: int) -> str:
    """How the log in objects of worker ``number`` is called."""
    return name if number == 0 else f"{name}-{number}"


def moved(address: Address, steps: int, step: int) -> Address:
    """The address of a worker so many further; any free port where there are no steps, or the first one's is free."""
    if steps == 0 or address.port == 0:
        return address
    port = address.port + steps * step if step else 0
    if port > 65535:
        raise SettingsError(f"worker {steps} would listen at port {port}: choose a smaller node.worker_port_step")
    return Address(address.host, port)
