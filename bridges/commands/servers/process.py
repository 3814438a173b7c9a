"""The frame of every command that runs a server in its own process: signals, draining, exit codes."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from bridges.commands.common import load_settings
from bridges.commands.failure import EXIT_CANNOT_START, EXIT_NODE_FAILED, EXIT_STALLED, EXIT_USAGE, fail
from bridges.node.process.memory import collect_seldom, keep_buffers, switch_threads_often

if TYPE_CHECKING:
    from bridges.node.finding import Finding
    from bridges.node.settings.config import Settings


class Service(Protocol):
    """A server that runs in the process. ``failure``: why it cannot go on, None if it can."""

    @property
    def failure(self) -> str | None: ...

    async def start(self, ready_file: Path | None = None) -> None:
        """Serve, and write the ready file. Cancelled if the process is asked to stop meanwhile."""
        ...

    async def stop(self) -> None:
        """Finish requests in progress, and stop."""
        ...

    def hurry(self) -> None:
        """Have a stop in progress wait no longer for requests."""
        ...


def check_running(settings: Settings) -> Iterable[Finding]:
    """Yield what the doctor finds at a running node."""
    from bridges.checkup.running import check  # imported when somebody looks at the console

    return check(settings)


def run(
    flags: Mapping[str, str],
    file: Path | None,
    make: Callable[[Settings, Callable[[str], None]], Service],
    *,
    ready: Path | None,
    several: Callable[[Settings, Path | None], None] | None = None,
) -> None:
    """Load the settings, and run the service that ``make`` makes of them until SIGTERM or SIGINT.

    Ends the process with an exit code if that is not 0. ``make`` also gets a callback, to be called with a sentence
    when the service cannot go on. Settings with several workers are passed to ``several``.
    """
    prepare()
    loaded = load_settings(flags, file)
    settings = loaded.settings
    for warning in loaded.warnings:
        click.echo(f"anabranch: {warning}", err=True)
    if several is not None and settings.node.workers > 1:
        several(settings, ready)
    else:
        serve(settings, make, ready)


def prepare() -> None:
    """Set up the interpreter of a process that is to serve; call it first."""
    # Starting creates no garbage worth collecting; the collector is enabled once everything serves.
    gc.disable()
    keep_buffers()
    switch_threads_often()


def tell(settings: Settings, worker: int | None = None) -> Settings:
    """Configure logging, with the worker's number if there are several; return the settings adapted to the system's
    limits.
    """
    import structlog

    from bridges.node.process import descriptors
    from bridges.node.process import logging as log
    from bridges.node.process.log_limit import LOG_LIMIT

    LOG_LIMIT.lines = settings.logging.repeated_lines
    told = {} if worker is None else {"worker": worker}
    log.configure(settings.logging.level, settings.logging.format, told=told)
    settings, lowered = descriptors.fit(settings, descriptors.raise_limit())
    if lowered is not None:
        structlog.get_logger("anabranch").warning(lowered)
    return settings


def serve(
    settings: Settings,
    make: Callable[[Settings, Callable[[str], None]], Service],
    ready: Path | None,
    worker: int | None = None,
    turns: Callable[[], object] = lambda: None,
) -> None:
    """Run a service, as :func:`run` does with loaded settings.

    A thread calls ``turns`` repeatedly while the event loop turns.
    """
    from anabranch_kit.errors import StoreError
    from anabranch_kit.run.cycle import CycleLoop
    from bridges.node.process.log_limit import tell_left_out
    from bridges.node.settings.sections import SettingsError

    settings = tell(settings, worker)
    try:
        with asyncio.Runner(loop_factory=CycleLoop) as runner:
            watching = partial(_watched, settings.node.stall_ms / 1000, turns)
            failure = runner.run(_telling_of_gaps(_until_stopped(partial(make, settings), ready, watching)))
    except (StoreError, OSError) as error:
        fail(str(error), EXIT_CANNOT_START)
    except SettingsError as error:
        fail(str(error), EXIT_USAGE)
    finally:
        tell_left_out(all_of_them=True)
    if failure is not None:
        fail(failure, EXIT_NODE_FAILED)


def reload_on_hangup(settings: Settings, reload: Callable[[], None]) -> None:
    """Have SIGHUP reload certificates, if any are set. To be called on the event loop."""
    if settings.tls or settings.sbp.tls:  # otherwise the signal ends the process, as a closed terminal expects
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


async def _telling_of_gaps(work: Coroutine[Any, Any, str | None]) -> str | None:
    """Await ``work``, and meanwhile log how many repeated log lines were left out."""
    from bridges.node.process.log_limit import PERIOD_SECONDS, tell_left_out

    async def tell() -> None:
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            tell_left_out()

    telling = asyncio.create_task(tell())
    try:
        return await work
    finally:
        telling.cancel()


@asynccontextmanager
async def _watched(seconds: float, turns: Callable[[], object]) -> AsyncGenerator[None, None]:
    """End the process if its event loop stands still for ``seconds`` while inside; 0: never."""
    from anabranch_kit.run.watchdog import Watchdog

    async def turn() -> None:
        while True:
            watchdog.turn()
            await asyncio.sleep(watchdog.pause)

    if not seconds:
        yield
        return
    watchdog = Watchdog(seconds, EXIT_STALLED, seen=turns)
    turning = asyncio.create_task(turn(), name="watchdog")
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
        turning.cancel()


async def _until_stopped(
    make: Callable[[Callable[[str], None]], Service],
    ready: Path | None,
    watched: Callable[[], AbstractAsyncContextManager[None]],
) -> str | None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    urgent = asyncio.Event()
    failed: list[str] = []

    def stop_or_hurry() -> None:
        # A second signal means: do not wait for requests in flight.
        (urgent if stop.is_set() else stop).set()

    def give_up(reason: str) -> None:
        failed.append(reason)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_or_hurry)
    service = make(give_up)
    starting = asyncio.ensure_future(service.start(ready))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()  # a cancelled start stops what it has started
        await asyncio.wait({starting})
        return failed[0] if failed else None
    starting.result()
    collect_seldom()
    # Starting and stopping may block on the disk for long, so the watchdog runs only between them. A supervisor has its
    # own patience for both.
    async with watched():
        await stopping
    draining = asyncio.ensure_future(service.stop())
    hurrying = asyncio.ensure_future(urgent.wait())
    await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
    if not draining.done():
        service.hurry()
    await draining
    hurrying.cancel()
    return failed[0] if failed else service.failure
