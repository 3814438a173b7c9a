"""Who a client of YDB's is: passwords, tokens, and nodes that want to know."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import grpc
import pytest
import ydb

from tests.conftest import TEST_SETTINGS
from tests.node_process import NodeProcess
from tests.ydb_topic_front.conftest import LISTEN
from tests.ydb_topic_front.raw import RawClient
from ydb_topic_front.wire.statuses import Status

USER, PASSWORD = "writer", "a secret of 22 letters"


@pytest.fixture(scope="module")
def strict_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that takes nobody who does not say who it is."""
    data = tmp_path_factory.mktemp("ydb-auth") / "data"
    command = [sys.executable, "-m", "bridges", "user", "add", USER, "--data", str(data)]
    subprocess.run(command, input=f"{PASSWORD}\n", text=True, check=True, capture_output=True)
    settings = {**TEST_SETTINGS, "auth.required": "true"}
    listen = {name: address if name == "ydb" else "off" for name, address in LISTEN.items()}
    with NodeProcess(data, settings=settings, listen=listen).lent() as node:
        yield node


def config(node: NodeProcess, password: str = PASSWORD) -> ydb.DriverConfig:
    credentials = ydb.StaticCredentials.from_user_password(USER, password)
    return ydb.DriverConfig(f"grpc://{node.ydb}", "/local", credentials=credentials)


def test_the_sdk_logs_in(strict_node: NodeProcess, topic: str) -> None:
    with ydb.Driver(config(strict_node)) as driver:
        driver.wait(timeout=30, fail_fast=True)
        driver.topic_client.create_topic(topic)
        assert driver.topic_client.describe_topic(topic).self.name == topic
        assert [one.name for one in driver.scheme_client.list_directory("/local").children] == [topic]


async def test_the_asyncio_sdk_logs_in(strict_node: NodeProcess, topic: str) -> None:
    async with ydb.aio.Driver(config(strict_node)) as driver:
        await driver.wait(timeout=30, fail_fast=True)
        await driver.topic_client.create_topic(topic)
        assert (await driver.topic_client.describe_topic(topic)).self.name == topic


def test_wrong_passwords_and_no_users_at_all_are_told_the_same(strict_node: NodeProcess) -> None:
    with RawClient(strict_node.ydb) as raw:
        answers = [
            raw.call("Login", user=user, password=password)
            for user, password in ((USER, "wrong"), ("nobody", PASSWORD), ("", ""), (USER, "x" * 100_000))
        ]
        assert {one.status for one in answers} == {Status.UNAUTHORIZED}
        assert len({one.issues[0].message for one in answers}) == 1
        token = raw.result("Login", user=USER, password=PASSWORD).token
    with RawClient(strict_node.ydb, x_ydb_auth_ticket=token) as raw:
        assert raw.result("WhoAmI").user == USER
        assert list(raw.result("WhoAmI").groups) == []
        assert list(raw.result("WhoAmI", include_groups=True).groups) == ["all-users@well-known"]


@pytest.mark.parametrize("ticket", [None, "", "nonsense", "a.b.c", "x" * 4000])
@pytest.mark.parametrize("kind", ["ListEndpoints", "CreateTopic", "WhoAmI", "CreateSession"])
def test_who_does_not_say_who_it_is_gets_nothing(strict_node: NodeProcess, kind: str, ticket: str | None) -> None:
    with (
        RawClient(strict_node.ydb, **({} if ticket is None else {"x_ydb_auth_ticket": ticket})) as raw,
        pytest.raises(grpc.RpcError) as refused,
    ):
        raw.call(kind)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_where_nobody_has_to_anybody_may(ydb_node: NodeProcess, topic: str) -> None:
    # A token of the service that an application comes from must not keep it out.
    with RawClient(ydb_node.ydb, x_ydb_auth_ticket="t1.9euelZ") as raw:
        raw.result("CreateTopic", path=topic)
        assert raw.result("WhoAmI", include_groups=True).user == "ANONYMOUS"
        assert not raw.result("WhoAmI", include_groups=True).groups


def test_a_user_that_is_removed_is_known_no_more(strict_node: NodeProcess) -> None:
    run = [sys.executable, "-m", "bridges", "user"]
    data = ["--data", str(strict_node.data)]
    secret = {"input": "another secret of mine\n", "text": True, "check": True, "capture_output": True}
    subprocess.run([*run, "add", "passing", *data], **secret)
    with RawClient(strict_node.ydb) as raw:
        login = {"user": "passing", "password": "another secret of mine"}
        while raw.call("Login", **login).status != Status.SUCCESS:
            pass  # until the node has looked at the file
        token = raw.result("Login", **login).token
    subprocess.run([*run, "remove", "passing", *data], check=True, capture_output=True)
    with RawClient(strict_node.ydb, x_ydb_auth_ticket=token) as raw:

        def turned_away() -> None:
            while raw.call("WhoAmI"):
                pass  # as above

        with pytest.raises(grpc.RpcError) as refused:
            turned_away()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_former_sdks_get_a_session_they_do_not_use(raw: RawClient) -> None:
    session = raw.result("CreateSession").session_id
    assert session
    assert raw.result("KeepAlive", session_id=session).session_status == 1
    assert raw.call("DeleteSession", session_id=session).status == Status.SUCCESS


@pytest.mark.parametrize(
    "path",
    ["/Ydb.Table.V1.TableService/ExecuteDataQuery", "/Ydb.Scheme.V1.SchemeService/ModifyPermissions", "/No.Such/Thing"],
)
def test_everything_else_is_unimplemented(raw: RawClient, path: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        raw.bytes(path, b"")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
