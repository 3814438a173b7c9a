"""Three nodes over one PostgreSQL and one store of objects, and clients of YDB: a node ends, or sleeps, under load, and
they go on; what they were told is judged."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.cluster.load import PATIENCE, TOPIC
from tests.cluster.ydb_load import PROGRAMS, load, owner_of_most, owners
from tests.kit.waiting import wait_until
from tests.node_process import NodeProcess
from tests.ydb_topic_front.raw import RawClient, RawStream


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("end", ["kill -9", "orderly"])
def test_clients_of_ydb_go_on_when_a_node_ends(nodes: list[NodeProcess], end: str, tmp_path: Path) -> None:
    with load(nodes, tmp_path / "history") as clients:
        clients.await_more(100)
        victim = owner_of_most(nodes)
        clients.forget()  # first openings are not what this is about
        if end == "kill -9":
            victim.kill()
        else:
            assert victim.terminate() == 0
        clients.await_more(100)
        clients.finish()
        clients.tell(end)
    clients.judge([node for node in nodes if node is not victim])
    # How fast it goes is the machine's as well: what is asserted would catch clients that wait for their own timeouts.
    assert max(pace.longest for pace in clients.paces) < (30 if end == "kill -9" else 10)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.java
@pytest.mark.go
@pytest.mark.timeout(400)
def test_sdks_in_other_languages_go_on_when_nodes_end(nodes: list[NodeProcess], tmp_path: Path) -> None:
    with load(nodes, tmp_path / "history", PROGRAMS) as clients:
        clients.await_more(50)
        victim = owner_of_most(nodes)
        clients.forget()
        victim.kill()
        clients.await_more(50)
        clients.tell("kill -9")
        victim.start()
        (other, *_) = [node for node in nodes if node is not victim]
        wait_until(lambda: set(owners(other).values()) == {1, 2, 3})
        clients.await_more(50)
        clients.forget()
        assert other.terminate() == 0
        clients.await_more(50)
        clients.finish()
        clients.tell("orderly")
    clients.judge([node for node in nodes if node is not other])


def opened(raw: RawClient, partition: int) -> RawStream:
    """A session that writes to a partition as a producer of its own."""
    stream = raw.stream("StreamWrite")
    stream.send(init_request={"path": TOPIC, "producer_id": "zombie", "partition_id": partition})
    assert stream.receive().status == 400000
    return stream


def rest(stream: RawStream) -> list[Any]:
    """What is still said, also if it ends with the node."""
    found: list[Any] = []
    with suppress(StopIteration, grpc.RpcError):
        while True:
            found.append(stream.receive())
    return found


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.go
@pytest.mark.timeout(400)
def test_an_owner_that_sleeps_and_wakes_up_acknowledges_nothing(nodes: list[NodeProcess], tmp_path: Path) -> None:
    with load(nodes, tmp_path / "history", PROGRAMS) as clients:
        clients.await_more(50)
        victim = owner_of_most(nodes)
        number = nodes.index(victim) + 1
        alive = [node for node in nodes if node is not victim]
        (partition, *_) = [one for one, owner in owners(alive[0]).items() if owner == number]
        with RawClient(victim.ydb) as raw:
            stream = opened(raw, partition)
            clients.forget()
            process = victim.process
            assert process is not None
            process.send_signal(signal.SIGSTOP)
            stream.send(write_request={"messages": [{"seq_no": 1, "data": b"nobody is told of this"}], "codec": 1})
            wait_until(lambda: number not in owners(alive[0]).values())
            before = {pace: pace.done for pace in clients.paces}
            # Others have an open connection to the sleeping node, which their SDK takes for good until a ping is lost.
            wait_until(lambda: any(pace.done > done + 10 for pace, done in before.items()), clients.failures)
            process.send_signal(signal.SIGCONT)
            assert process.wait(PATIENCE) != 0  # it was taken for dead
            victim.process = None
            assert not any(message.write_response.acks for message in rest(stream))
        clients.await_more(50)
        clients.finish()
        clients.tell("a writer went on before a node woke up")
    with RawClient(alive[0].ydb) as raw:
        again = raw.stream("StreamWrite")
        again.send(init_request={"path": TOPIC, "producer_id": "zombie", "partition_id": partition})
        assert again.receive().init_response.last_seq_no == 0, "nothing of it is there"
        again.cancel()
    clients.judge(alive)
