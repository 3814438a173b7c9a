"""An upgrade that is killed at a step, for tests; the arguments are the step's name and those of the command.

A step is just before or just behind something that becomes durable: an object, a transaction, a file's new name. ``7``
is the seventh; ``end7`` the seventh from the one on in which the directory names the cluster; ``none`` runs to the end
and prints how many of both there are; ``switch`` is the moment before the metadata gets its names.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anabranch_kit.sql import copying
from anabranch_kit.sql.schemas import Schemas
from bridges.commands.cli import main
from sbp_back.range_server.object_log.objects.bucket import Bucket
from spark_pipeline.jobs.upgrade import metadata as upgrade_metadata
from spark_pipeline.jobs.upgrade import upgrade
from tests.kill_steps import Steps


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    told = sys.argv.pop(1)
    steps = Steps(int(told) if told.isdigit() else None)
    end = Steps(int(told.removeprefix("end")) if told.startswith("end") else None, armed=False)

    def around(work: Callable[..., Any]) -> Callable[..., Any]:
        return steps.around(end.around(work))

    naming = around(upgrade.write_file_durably)

    def name(*arguments: Any) -> None:
        end.armed = True
        naming(*arguments)

    upgrade.write_file_durably = name
    Bucket.put_if_absent = around(Bucket.put_if_absent)  # type: ignore[method-assign]
    copying.run = around(copying.run)
    Schemas.rename = around(Schemas.rename)  # type: ignore[method-assign]
    Schemas.drop = around(Schemas.drop)  # type: ignore[method-assign]
    Path.rename = around(Path.rename)  # type: ignore[method-assign]
    if told == "switch":
        upgrade_metadata.switch = _die
    try:
        main(prog_name="anabranch")
    finally:
        print(f"steps: {steps.seen} {end.seen}", flush=True)
