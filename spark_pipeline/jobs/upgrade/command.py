"""``anabranch upgrade-to-cluster``: a single node's metadata into PostgreSQL, its data into a bucket."""

from __future__ import annotations

import time
from pathlib import Path

import click

from bridges.commands.common import key_values, load_settings, settings_options
from bridges.commands.failure import EXIT_USAGE, fail
from spark_pipeline.jobs.command_options import failures, report_option, tell, throttle_option

_EVERY_S = 1.0


@click.command("upgrade-to-cluster", short_help="Turn a stopped node into a node of a cluster, with its data.")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Data directory (setting data_dir).")
@settings_options
@throttle_option
@report_option
def command(
    data: Path | None, sets: tuple[str, ...], config: Path | None, throttle: int | None, report: Path | None
) -> None:
    """Turn a stopped node into a node of a cluster: move its metadata to PostgreSQL, its data to objects.

    Give it the settings that 'serve' is to have in the cluster (cluster.database, node.id, sbp.durability=object,
    sbp.objects, sbp.object_log), and stop the node first. Everything is compared before it counts; if interrupted
    anywhere, it goes on when it is run again. Then start the node with the same settings and --data; its former files
    stay in DIR/single-node.
    """
    import asyncio

    from anabranch_kit.run.cycle import CycleLoop
    from bridges.node.settings.sections import SettingsError

    flags = key_values(sets, "--set")
    if data is not None:
        flags["data_dir"] = str(data)
    settings = load_settings(flags, config).settings
    try:
        with failures():
            from spark_pipeline.core.throttle import Throttle
            from spark_pipeline.jobs.upgrade.upgrade import Upgrade

            upgrade = Upgrade(settings, Throttle(throttle), _Line().show)
            with asyncio.Runner(loop_factory=CycleLoop) as runner:
                found = runner.run(upgrade.run())
    except SettingsError as error:
        fail(str(error), EXIT_USAGE)
    tell(found, report)


class _Line:
    """A line on standard error that shows the current step and its progress."""

    def __init__(self) -> None:
        self._step = ""
        self._next = 0.0

    def show(self, step: str, done: int, total: int) -> None:
        now = time.monotonic()
        if step == self._step and now < self._next:
            return
        self._step, self._next = step, now + _EVERY_S
        far = f", {done / 1e6:,.0f} of {total / 1e6:,.0f} MB" if done else ""
        click.echo(f"{step}{far}", err=True)
