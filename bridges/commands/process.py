"""A server in a process of its own: signals, draining, exit codes. What every such command shares."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from bridges.commands.cli import EXIT_CANNOT_START, EXIT_NODE_FAILED, EXIT_STALLED, EXIT_USAGE
from bridges.commands.common import fail
from bridges.node import interpreter
from bridges.node.memory import collect_seldom, keep_buffers

if TYPE_CHECKING:
    from bridges.node.config import Settings


class Service(Protocol):
    """What runs in the process. ``failure``: why it cannot go on, if so."""

    @property
    def failure(self) -> str | None: ...

    async def start(self, ready_file: Path | None = None) -> None:
        """Serve, and write the ready file. Cancelled when the process is told to stop meanwhile."""
        ...

    async def stop(self) -> None:
        """Finish what is under way, and stop."""
        ...

    def hurry(self) -> None:
        """Have a stop that is under way give up waiting."""
        ...


def run(
    flags: Mapping[str, str],
    file: Path | None,
    make: Callable[[Settings, Callable[[str], None]], Service],
    *,
    ready: Path | None,
    several: Callable[[Settings, Path | None], None] | None = None,
) -> None:
    """Run what ``make`` makes of the settings until SIGTERM or SIGINT; ends the process with an exit code if that is
    not 0. ``make`` also gets what is to be called, with a sentence, when the service cannot go on. Settings that ask
    for several processes are left to ``several``."""
    prepare()
    from bridges.node.config import load
    from bridges.node.sections import SettingsError

    try:
        loaded = load(flags, environ=os.environ, file=file)
    except SettingsError as error:
        fail(str(error), EXIT_USAGE)
    settings = loaded.settings
    for warning in loaded.warnings:
        click.echo(f"anabranch: {warning}", err=True)
    if several is not None and settings.node.workers > 1:
        several(settings, ready)
    else:
        serve(settings, make, ready)


def prepare() -> None:
    """What holds for a process that is to serve, before it does anything else."""
    # Nothing made while starting is garbage worth looking for; the collector is switched on once everything serves.
    gc.disable()
    keep_buffers()
    interpreter.share()


def tell(settings: Settings, worker: int | None = None) -> Settings:
    """Have the process log as it is set, as which of several workers it is; the settings as they fit the system."""
    import structlog

    from bridges.node import descriptors
    from bridges.node import logging as log
    from bridges.node.log_limit import LOG_LIMIT

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
    """See :func:`run`. ``turns`` is called on a thread, again and again while the event loop turns."""
    from anabranch_kit.errors import StoreError
    from anabranch_kit.run.cycle import CycleLoop
    from bridges.node.log_limit import tell_left_out
    from bridges.node.sections import SettingsError

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
    """Have SIGHUP read certificates again where there are any. To be called on the event loop."""
    if settings.tls or settings.sbp.tls:  # otherwise the signal ends a process, as the terminal that is closed expects
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


async def _telling_of_gaps(work: Coroutine[Any, Any, str | None]) -> str | None:
    """Do ``work``, and tell meanwhile how many log lines were left out."""
    from bridges.node.log_limit import PERIOD_SECONDS, tell_left_out

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
    """Have the process end if its event loop stands still for ``seconds`` meanwhile; 0: it may."""
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

    def asked() -> None:
        # A second signal says that waiting for requests in flight takes too long.
        (urgent if stop.is_set() else stop).set()

    def give_up(reason: str) -> None:
        failed.append(reason)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    service = make(give_up)
    starting = asyncio.ensure_future(service.start(ready))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()  # it stops again what it has started
        await asyncio.wait({starting})
        return failed[0] if failed else None
    starting.result()
    collect_seldom()
    # Starting and stopping may well be at the disk for long; whoever waits for them has patience of their own.
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
