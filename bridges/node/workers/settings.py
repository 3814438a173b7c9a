"""The settings of each worker of a node that is several processes (``bridges/node/workers/worker.py``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from anabranch_kit.net.address import Address
from bridges.node.front import Front
from bridges.node.listening import OFF, Listening
from bridges.node.settings.config import Settings
from bridges.node.settings.sections import SettingsError
from bridges.node.workers.worker import add_number, moved


def check(settings: Settings, fronts: Sequence[type[Front]]) -> None:
    """Check that a node with these settings can be several workers. Raises SettingsError."""
    count = settings.node.workers
    if settings.cluster.database:
        raise SettingsError(
            f"node.workers = {count}: workers share a database in data_dir; where cluster.database is set, start as "
            "many nodes, each with a node.id and a data_dir of its own"
        )
    if settings.sbp.mode != "embedded":
        raise SettingsError(f"node.workers = {count} needs sbp.mode = embedded: each worker keeps its partitions' data")
    taken: dict[int, str] = {}
    for number in range(count):
        for name, text in settings_of(settings, fronts, number).listen.items():
            port = 0 if text == OFF else Address.parse(text, settings.default_host).port
            whose = f"listener {name} of worker {number}"
            if port and taken.setdefault(port, whose) != whose:
                raise SettingsError(
                    f"{taken[port]} and {whose} would both be at port {port}: choose another node.worker_port_step"
                )


def settings_of(
    settings: Settings, fronts: Sequence[type[Front]], number: int, opened: Mapping[str, str] | None = None
) -> Settings:
    """Return the settings of worker ``number``. ``opened``: the addresses at which its listeners were opened before.

    Bounds on memory, work and disk of the whole node are divided among the workers.
    """
    count = settings.node.workers
    step = settings.node.worker_port_step
    listen = {name: OFF for name, text in settings.listen.items() if text == OFF}
    for name, address in Listening(settings, fronts).addresses().items():
        listen[name] = str(moved(address, number, step))
    told = {name: str(moved(Address.parse(text), number, step)) for name, text in settings.advertise.items()}
    limits, log, sbp = settings.limits, settings.log, settings.sbp
    return replace(
        settings,
        listen={**listen, **(opened or {})},
        advertise=told,
        node=replace(settings.node, id=settings.node.id + number),
        limits=replace(
            limits,
            connections_memory_bytes=max(1024**2, limits.connections_memory_bytes // count),
            translated_bytes=limits.translated_bytes // count,
            history_bytes=limits.history_bytes // count,
        ),
        log=replace(
            log,
            tail_cache_bytes=log.tail_cache_bytes // count,
            max_producers=max(1000, log.max_producers // count),
            cleaner_buffer_bytes=max(64 * 1024, log.cleaner_buffer_bytes // count),
            # 0 means no bound, and must stay 0
            cleaner_bytes_per_second=-(-log.cleaner_bytes_per_second // count),
        ),
        sbp=replace(
            sbp,
            retention_bytes=sbp.retention_bytes if sbp.retention_bytes < 0 else sbp.retention_bytes // count,
            local_bytes=sbp.local_bytes if sbp.local_bytes < 0 else sbp.local_bytes // count,
            object_log=add_number(sbp.object_log, number),
            object_cache_bytes=max(3 * sbp.segment_bytes, sbp.object_cache_bytes // count),
        ),
    )


def by_name(addresses: Iterable[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield names and addresses of the listeners of all workers: worker 0's as in a single node, the others' with
    ``/k``.
    """
    for number, one in enumerate(addresses):
        for name, address in one.items():
            yield (name if number == 0 else f"{name}/{number}"), address
