"""The doctor's checks that apply to a node while it runs, for its console. They write nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

from anabranch_kit.disk.files import file_system_of
from bridges.checkup import clock, doors, machine, storage
from bridges.node.finding import Finding
from bridges.node.settings.config import Settings


def check(settings: Settings) -> Iterator[Finding]:
    """Yield what is found, good or bad. Files are read and names looked up, so this is for a thread."""
    place = storage.nearest(settings.data_dir)
    for checks in (
        storage.check_kind(settings.data_dir, file_system_of(place)),
        storage.check_space(settings, place),
        machine.check_memory(settings, machine.available_bytes()),
        clock.check_kept(kept=clock.is_kept()),
        doors.check(settings, running=True, now_s=time.time()),
    ):
        yield from checks
