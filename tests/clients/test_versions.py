"""Which versions the newest clients speak with a node: those that it offers, as far as they know them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from kafka_front.wire.apis import APIS, ApiKey
from tests.clients.api import EARLIEST, LATEST, Rec
from tests.clients.client_remote import REMOTES
from tests.clients.conftest import fresh
from tests.clients.recording import Recorder
from tests.clients.registry import Opener, marks
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    """In front of a node that sends its clients through it."""
    with Recorder() as recorder:
        directory = tmp_path_factory.mktemp("recorded")
        with NodeProcess(directory / "data", settings={"advertise.kafka": recorder.address}) as node:
            recorder.target = node.kafka
            yield recorder


K = ApiKey
HIGHEST = {
    key: APIS[key].highest
    for key in (
        K.PRODUCE,
        K.FETCH,
        K.LIST_OFFSETS,
        K.METADATA,
        K.OFFSET_COMMIT,
        K.OFFSET_FETCH,
        K.FIND_COORDINATOR,
        K.JOIN_GROUP,
        K.LEAVE_GROUP,
        K.SYNC_GROUP,
        K.DESCRIBE_GROUPS,
        K.CREATE_TOPICS,
        K.DELETE_TOPICS,
        K.INIT_PRODUCER_ID,
        K.DELETE_GROUPS,
        K.API_VERSIONS,
    )
}
OWN = {
    # A consumer of these clients commits by name in groups of the classic kind.
    "java-new": {K.OFFSET_COMMIT: 9, K.OFFSET_FETCH: 9},
    "franz-go": {},
    "platformatic": {
        K.PRODUCE: 11,
        K.FETCH: 17,
        K.LIST_OFFSETS: 9,
        K.METADATA: 12,
        K.OFFSET_COMMIT: 9,
        K.OFFSET_FETCH: 9,
        K.DESCRIBE_GROUPS: 5,
        K.DELETE_GROUPS: 2,
        K.API_VERSIONS: 3,
    },
}
"""Where a client's own highest version is lower than what is offered."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in OWN])
def test_the_newest_clients_are_offered_their_highest_versions_and_work_with_them(
    name: str, recorder: Recorder, open_client: Opener
) -> None:
    client, topic, group = open_client.at(name, recorder.address), fresh("versions"), fresh("group")
    recorder.asked.clear()
    client.create_topic(topic, 1)
    client.produce(topic, 0, [Rec(b"value")], idempotent=True)
    assert [record.value for record in client.consume(topic, {0: 1})] == [b"value"]
    assert [record.value for record in client.consume_group(group, topic, 1)] == [b"value"]
    assert client.committed(group, topic, 0) == 1
    assert (client.offset(topic, 0, EARLIEST), client.offset(topic, 0, LATEST)) == (0, 1)
    assert client.describe_group(group).members == 0
    client.delete_group(group)
    # By id, where a client does: what has the name next is another topic to it.
    client.delete_topic(topic)
    client.create_topic(topic, 1)
    client.produce(topic, 0, [Rec(b"of the next topic")], idempotent=True)
    assert [record.value for record in client.consume(topic, {0: 1})] == [b"of the next topic"]
    assert {key: max(recorder.asked[key]) for key in HIGHEST} == HIGHEST | OWN[name]


@pytest.mark.go
def test_franz_go_recognises_a_broker_of_the_release_that_is_the_anchor(recorder: Recorder) -> None:
    """franz-go's kversion, by which kcl, rpk and Redpanda Console tell a broker's release, wants every API of it."""
    driver = next(remote for remote in REMOTES if remote.name == "franz-go").program.start()
    with closing(driver):
        assert driver.call({"op": "version_guess", "bootstrap": recorder.address}) == ["v4.4"]
