"""The largest request of every API of Kafka's: in each of its arrays, as many distinct things as a request may name.

    python tests/hostile/hostile_largest.py [PART-OF-A-NAME]

starts a node in this process, sends them one after the other, and prints for each how long its answer took, the longest
step of the event loop meanwhile, in time of the processor, and how memory grew. `make hostile` sends them all as one of
its attacks.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from hostile_frames import BULK, kafka  # noqa: E402

from kafka_front.wire import codec  # noqa: E402
from kafka_front.wire import messages as m  # noqa: E402
from kafka_front.wire.apis import APIS  # noqa: E402
from kafka_front.wire.primitives import MAX_ELEMENTS  # noqa: E402

PATIENCE_S = 30.0
LONG_STEP_S = 0.05
"""What holds the loop for so long is told of."""
_SIZE = struct.Struct(">i")
_GIVEN: dict[str, Any] = {
    "acks": -1,
    "allow_auto_topic_creation": False,
    "batch_size": 100,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "group_id": "largest",
    "key": "largest",
    "max_bytes": 1 << 20,
    "max_records": 100,
    "max_wait_ms": 100,
    "member_id": "largest",
    "name": BULK,
    "partition_max_bytes": 1 << 20,
    "pattern_type_filter": 1,
    "protocol_type": "consumer",
    "rebalance_timeout_ms": 60_000,
    "replica_id": -1,
    "resource_name": BULK,
    "resource_type": 2,
    "session_epoch": 0,
    "session_timeout_ms": 30_000,
    "timeout_ms": 1_000,
    "topic": BULK,
    "topic_name": BULK,
    "transaction_timeout_ms": 60_000,
    "transactional_id": "largest",
    "validate_only": True,
}
"""What fields are that are not named many times: that the request is carried out, and changes nothing."""
_SMALL = {"resource_types", "acknowledge_types"}
"""Numbers of a byte."""
_EMPTY = {("ConsumerGroupHeartbeatRequest", "topic_partitions"), ("ShareFetchRequest", "forgotten_topics_data")}
"""Arrays that stay empty beside others: a member that joins has nothing yet."""


def arrays(kind: type, root: type) -> Iterator[tuple[str, type | str]]:
    """The array fields of a structure, each with the structure, or the plain type, of its elements."""
    for name, hint in kind.__init__.__annotations__.items():
        hint = str(hint).removesuffix(" | None")
        if hint.startswith("list["):
            inner = hint.removeprefix("list[").removesuffix("]")
            yield name, getattr(root, inner.removeprefix(f"{root.__name__}.")) if "." in inner else inner


def elements(kind: type | str, root: type) -> int:
    """How many elements one is, with those of its own arrays, one in each."""
    return 1 if isinstance(kind, str) else 1 + sum(elements(inner, root) for _, inner in arrays(kind, root))


def paths(kind: type, root: type) -> Iterator[tuple[str, ...]]:
    """The arrays below a structure, by the fields that lead there."""
    for name, inner in arrays(kind, root):
        yield (name,)
        if not isinstance(inner, str):
            yield from ((name, *rest) for rest in paths(inner, root))


def plain(kind: str, name: str, number: int, topic_id: bytes) -> Any:
    if kind == "int":
        return number % 100 if name in _SMALL else number
    return topic_id if kind == "bytes" else f"{name}{number}"


def filled(kind: type, root: type, path: tuple[str, ...], topic_id: bytes, number: int | None = None) -> Any:
    """A structure with one element in each array, and many in the one that ``path`` leads to.

    ``number``: which of those many it is: its names are its own.
    """
    message = kind()
    own = dict(arrays(kind, root))
    for name, hint in kind.__init__.__annotations__.items():
        if name in own:
            inner = own[name]
            count = MAX_ELEMENTS // elements(inner, root) - 8 if path == (name,) else 1
            if count == 1 and (root.__name__, name) in _EMPTY and path[:1] != (name,):
                count = 0
            rest = path[1:] if path[:1] == (name,) else ("",)
            setattr(
                message,
                name,
                [
                    plain(inner, name, which, topic_id)
                    if isinstance(inner, str)
                    else filled(inner, root, rest, topic_id, which if path == (name,) else None)
                    for which in range(count)
                ],
            )
        elif name == "topic_id":
            message.topic_id = topic_id if number is None else struct.pack(">qq", 1, number)
        elif number is not None and str(hint).startswith("str"):
            setattr(message, name, f"{name}{number}")
        elif number is not None and name in ("partition", "partition_index", "index"):
            setattr(message, name, number)
        elif name in _GIVEN:
            setattr(message, name, _GIVEN[name])
    return message


def largest(topic_id: bytes, parts: Sequence[str] = ()) -> Iterator[tuple[str, bytes]]:
    """Each request with its API and array, of those whose names have all ``parts``."""
    for api in APIS.values():
        root = getattr(m, f"{api.name}Request")
        for path in paths(root, root):
            name = f"{api.name} {'.'.join(path)}"
            if all(part in name for part in parts):
                yield name, kafka(api.highest, filled(root, root, path, topic_id))


def ask(address: tuple[str, int], frame: bytes) -> bytes | None:
    """The answer to a request on a connection of its own; None if the node ended that instead."""
    with socket.create_connection(address, timeout=PATIENCE_S) as link:
        try:
            link.sendall(frame)
            parts = bytearray()
            while len(parts) < 4 or len(parts) < 4 + _SIZE.unpack_from(parts)[0]:
                some = link.recv(1 << 20)
                if not some:
                    return None
                parts += some
        except OSError:
            return None
    return bytes(parts[4:])


def topic_id_of(address: tuple[str, int], name: str) -> bytes:
    """The id of a topic that is there."""
    asked = m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    answer = ask(address, kafka(12, asked))
    assert answer is not None
    return bytes(codec.decode_response(asked.API_KEY, 12, answer)[1].topics[0].topic_id)


class Steps:
    """What the event loop of this thread does: ``longest`` is the longest step, in seconds of the processor."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.of = ""
        self._run = asyncio.Handle._run

    def __enter__(self) -> Steps:
        run = self._run

        def timed(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run(handle)
            took = time.thread_time() - began
            if took > self.longest:
                self.longest, self.of = took, repr(handle)

        asyncio.Handle._run = timed  # type: ignore[assignment, method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]


async def measure(parts: Sequence[str]) -> None:
    import psutil

    from tests.kafka_front.node_lab import serving

    process = psutil.Process()
    with tempfile.TemporaryDirectory() as directory:
        async with serving(Path(directory)) as node:
            address = node.addresses["kafka"].host, node.addresses["kafka"].port
            topic_id = (await node.catalog.create_topic(BULK, 50, {})).topic_id.bytes
            print(f"{'request':60} {'KiB':>6} {'answer ms':>9} {'step ms':>9} {'RSS MiB':>8}")
            for name, frame in largest(topic_id, parts):
                before = process.memory_info().rss
                with Steps() as steps:
                    began = time.monotonic()
                    answer = await asyncio.to_thread(ask, address, frame)
                    took = time.monotonic() - began
                    await asyncio.sleep(0.05)
                more = (process.memory_info().rss - before) / 2**20
                end = "" if answer is not None else "  closed"
                figures = f"{took * 1e3:9.0f} {steps.longest * 1e3:9.0f} {more:8.1f}"
                print(f"{name:60} {len(frame) >> 10:6} {figures}{end}", flush=True)
                if steps.longest > LONG_STEP_S:
                    print(f"    {steps.of[:300]}", flush=True)


def main() -> None:
    asyncio.run(measure(sys.argv[1:]))


if __name__ == "__main__":
    main()
