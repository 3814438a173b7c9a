"""Delegation tokens (KIP-48, KIP-373): issued, renewed, expired, described, and used to log in."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridges.auth import Principal
from bridges.auth.authenticator import Authenticator, AuthOptions
from bridges.auth.users import change
from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.node.assembly import Node
from kafka_front.service import delegation
from kafka_front.settings import KafkaSettings
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode as E
from kafka_front.wire.errors import KafkaError
from tests.clients.api import Rec
from tests.clients.client_remote import REMOTES, RemoteClient
from tests.databases import database, on_postgres
from tests.ecosystem.tools.run import Shell
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.node_lab import serving
from tests.kafka_front.test_reauthentication import ended, log_in, scram
from tests.kafka_front.test_sasl import METADATA, put
from tests.node_process import ANY, NodeProcess
from tests.node_users import with_users
from tests.postgres import Postgres

DAY_MS = 86_400_000
SECONDS = 30.0
TOOL = "org.apache.kafka.tools.DelegationTokenCommand"
Renewer = m.CreateDelegationTokenRequest.CreatableRenewers
Owner = m.DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
Rule = m.CreateAclsRequest.AclCreation
SETTINGS = {"auth.required": "true", "auth.rules": "deny", "auth.super_users": "User:root"}
USERS = {"root": "secret", "alice": "wonder", "bob": "builder", "carol": "sings"}
TOKEN, USER = 6, 7
DESCRIBE, CREATE_TOKENS, DESCRIBE_TOKENS = 8, 13, 14


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    put(tmp_path / "data" / "users.json", **USERS)
    async with serving(tmp_path, SETTINGS) as made:
        yield made


class People:
    """A logged-in connection for each user."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._clients: dict[str, WireClient] = {}

    async def __aenter__(self) -> People:
        for name, password in USERS.items():
            client = self._clients[name] = self.stranger()
            await client.__aenter__()
            assert (await log_in(client, name, password)).error_code == 0
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients.values():
            await client.__aexit__(None, None, None)

    def __getitem__(self, name: str) -> WireClient:
        return self._clients[name]

    def stranger(self) -> WireClient:
        address = self._node.addresses["kafka"]
        return WireClient(address.host, address.port)


@pytest.fixture
async def people(node: Node) -> AsyncIterator[People]:
    async with People(node) as made:
        yield made


async def create(client: WireClient, owner: str = "", lifetime_ms: int = -1, renewers: tuple[str, ...] = ()) -> Any:
    named = [Renewer("User", name) for name in renewers]
    return await client.call(3, m.CreateDelegationTokenRequest("User" if owner else None, owner, named, lifetime_ms))


async def seen(client: WireClient, *owners: str) -> list[str]:
    asked = [Owner("User", name) for name in owners] if owners else None
    return [one.token_id for one in (await client.call(3, m.DescribeDelegationTokenRequest(asked))).tokens]


async def log_in_with(client: WireClient, token: Any) -> Any:
    password = base64.b64encode(token.hmac).decode()
    last, _ = await scram(client, token.token_id, password, ",tokenauth=true")
    return await client.call(2, m.SaslAuthenticateRequest(auth_bytes=last))


async def test_a_token_logs_in_as_its_owner_until_it_expires(people: People) -> None:
    token = await create(people["alice"])
    assert token.error_code == 0
    assert token.expiry_timestamp_ms - token.issue_timestamp_ms == DAY_MS
    assert token.max_timestamp_ms - token.issue_timestamp_ms == 7 * DAY_MS
    async with people.stranger() as program:
        done = await log_in_with(program, token)
        assert done.error_code == 0
        assert DAY_MS - 60_000 < done.session_lifetime_ms <= DAY_MS
        # A program that has only a token gets no other token from it.
        assert (await create(program)).error_code == E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert (await program.call(9, METADATA)).brokers
        assert (await program.call(1, m.SaslHandshakeRequest("SCRAM-SHA-256"))).error_code == 0
        assert (await create(program)).error_code == E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "nor between two logins"
        gone = await people["alice"].call(2, m.ExpireDelegationTokenRequest(token.hmac, -1))
        assert gone.error_code == 0
        await ended(program, SECONDS)
    async with people.stranger() as program:
        assert (await log_in_with(program, token)).error_code == E.SASL_AUTHENTICATION_FAILED
    assert await seen(people["alice"]) == []


async def test_a_token_is_no_password_of_a_user_and_a_password_is_no_token(people: People) -> None:
    token = await create(people["alice"])
    hmac = base64.b64encode(token.hmac).decode()
    for name, password, extension in (
        (token.token_id, hmac, ""),
        ("alice", "wonder", ",tokenauth=true"),
        (token.token_id, "wonder", ",tokenauth=true"),
        ("alice", hmac, ",tokenauth=true"),
    ):
        async with people.stranger() as program:
            last, _ = await scram(program, name, password, extension)
            answer = await program.call(2, m.SaslAuthenticateRequest(auth_bytes=last))
            assert answer.error_code == E.SASL_AUTHENTICATION_FAILED, (name, extension)


async def test_owner_requester_and_renewers_renew_and_expire_a_token_within_its_life(people: People) -> None:
    token = await create(people["alice"], lifetime_ms=3 * DAY_MS, renewers=("bob",))
    alice, bob, carol = people["alice"], people["bob"], people["carol"]
    renewed = await bob.call(2, m.RenewDelegationTokenRequest(token.hmac, 10 * DAY_MS))
    assert renewed.error_code == 0
    assert DAY_MS <= renewed.expiry_timestamp_ms - token.issue_timestamp_ms < DAY_MS + 60_000
    mismatch = E.DELEGATION_TOKEN_OWNER_MISMATCH
    assert (await carol.call(2, m.RenewDelegationTokenRequest(token.hmac, 1))).error_code == mismatch
    assert (await carol.call(2, m.ExpireDelegationTokenRequest(token.hmac, -1))).error_code == mismatch
    unknown = E.DELEGATION_TOKEN_NOT_FOUND
    assert (await alice.call(2, m.RenewDelegationTokenRequest(b"none", 1))).error_code == unknown
    assert (await alice.call(2, m.ExpireDelegationTokenRequest(b"none", 1))).error_code == unknown
    late = await alice.call(2, m.ExpireDelegationTokenRequest(token.hmac, 10 * DAY_MS))
    assert late.expiry_timestamp_ms == token.max_timestamp_ms
    assert (await alice.call(2, m.ExpireDelegationTokenRequest(token.hmac, 0))).error_code == 0
    over = await alice.call(2, m.RenewDelegationTokenRequest(token.hmac, 1000))
    assert over.error_code in (E.DELEGATION_TOKEN_EXPIRED, unknown)


async def test_rights_let_others_request_and_see_tokens(people: People) -> None:
    root, bob, carol = people["root"], people["bob"], people["carol"]
    refused = await create(bob, owner="alice")
    assert refused.error_code == E.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    rules = [
        Rule(USER, "User:alice", 3, "User:bob", "*", CREATE_TOKENS, 3),
        Rule(USER, "User:alice", 3, "User:carol", "*", DESCRIBE_TOKENS, 3),
    ]
    assert [one.error_code for one in (await root.call(3, m.CreateAclsRequest(rules))).results] == [0, 0]
    token = await create(bob, owner="alice")
    assert token.error_code == 0
    assert (token.principal_name, token.token_requester_principal_name) == ("alice", "bob")
    own = await create(bob)
    assert await seen(people["alice"]) == [token.token_id]
    assert await seen(bob) == [token.token_id, own.token_id]
    assert await seen(carol) == [token.token_id]
    assert await seen(carol, "bob") == [token.token_id], "whose requester he is"
    assert await seen(root) == [token.token_id, own.token_id]
    assert (await root.call(3, m.DescribeDelegationTokenRequest([]))).tokens == []
    rule = Rule(TOKEN, own.token_id, 3, "User:alice", "*", DESCRIBE, 3)
    assert (await root.call(3, m.CreateAclsRequest([rule]))).results[0].error_code == 0
    assert await seen(people["alice"]) == [token.token_id, own.token_id]


async def test_tokens_of_principals_that_are_no_users_and_too_many_are_refused(people: People) -> None:
    alice = people["alice"]
    other = m.CreateDelegationTokenRequest(None, None, [Renewer("Group", "all")], -1)
    assert (await alice.call(3, other)).error_code == E.INVALID_PRINCIPAL_TYPE
    assert (await create(alice, renewers=tuple(f"u{n}" for n in range(101)))).error_code == E.INVALID_REQUEST
    assert (await create(alice, renewers=("u" * 1001,))).error_code == E.INVALID_REQUEST


async def test_tokens_hold_after_a_restart_and_end_with_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "data" / "users.json"
    put(path, **USERS)
    async with serving(tmp_path, SETTINGS) as node, People(node) as people:
        token = await create(people["alice"])
    async with serving(tmp_path, SETTINGS) as node, People(node) as people, people.stranger() as program:
        assert await seen(people["alice"]) == [token.token_id]
        assert (await log_in_with(program, token)).error_code == 0
        change(path, lambda users: users.pop("alice") and None)
        await node.authenticator.refresh()
        await ended(program, SECONDS)
        async with people.stranger() as another:
            assert (await log_in_with(another, token)).error_code == E.SASL_AUTHENTICATION_FAILED


async def test_an_expired_token_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "data" / "users.json", **USERS)
    monkeypatch.setattr(KafkaSettings, "delegation_token_expiry_ms", 1)
    async with serving(tmp_path, SETTINGS) as node, People(node) as people:
        token = await create(people["alice"])
        deadline = time.monotonic() + SECONDS
        while await seen(people["alice"]):
            assert time.monotonic() < deadline
        gone = await people["alice"].call(2, m.RenewDelegationTokenRequest(token.hmac, 1))
        assert gone.error_code == E.DELEGATION_TOKEN_NOT_FOUND


@asynccontextmanager
async def tokens_of(path: Path, *, first: bool) -> AsyncIterator[tuple[delegation.DelegationTokens, Authenticator]]:
    """The tokens of a node whose database is shared."""
    authenticator = Authenticator(AuthOptions(path / "users.json", path / "token-keys.json"))
    await authenticator.load()
    db = database(path / "node.db", MIGRATIONS, application_id=APPLICATION_ID)
    await db.open()
    await db.changes.begin()
    if first:
        await db.run(delegation.MIGRATIONS[0])
    node: Any = SimpleNamespace(db=db, authenticator=authenticator)
    tokens = delegation.DelegationTokens(node, KafkaSettings())
    await tokens.load()
    try:
        yield tokens, authenticator
    finally:
        await db.close()
        authenticator.close()


async def test_a_user_of_the_same_name_does_not_inherit_tokens(tmp_path: Path) -> None:
    alice, path = Principal("User", "alice"), tmp_path / "users.json"
    put(path, alice="wonder")
    async with tokens_of(tmp_path, first=True) as (tokens, authenticator):
        token = await tokens.issue(alice, alice, (), 0)
        put(path, bob="builder")
        await authenticator.refresh()
        await tokens.sweep(token.issued_ms + 1000)
        assert await tokens.latest() == [token], "perhaps this node has not read of her yet"
        await tokens.sweep(token.issued_ms + 61_000)
        put(path, alice="another")
        await authenticator.refresh()
        assert tokens.find(token.id) is None


async def test_what_one_node_issues_and_expires_holds_at_every_node(postgres: Postgres, tmp_path: Path) -> None:
    alice, mechanism = Principal("User", "alice"), "SCRAM-SHA-256"

    async def nothing() -> None: ...

    async with AsyncExitStack() as stack:
        stack.enter_context(on_postgres(postgres))
        one, _ = await stack.enter_async_context(tokens_of(tmp_path, first=True))
        other, _ = await stack.enter_async_context(tokens_of(tmp_path, first=False))
        token = await one.issue(alice, alice, (), 0)
        assert other.find(token.id) is None
        await other.derive_keys(mechanism, token.id)
        assert other.find(token.id) == token
        assert other.find_keys(mechanism, token.id) is not None
        secret = other.secret(token.id)
        assert secret == one.secret(token.id)
        await other.expire(secret, alice, -1)
        one._db.changes.latest = nothing  # type: ignore[method-assign] # it has not heard of that yet
        with pytest.raises(KafkaError) as refused:
            await one.renew(secret, alice, 1000)
        assert refused.value.code == E.DELEGATION_TOKEN_NOT_FOUND, "a renewal never brings a token back"
        assert await other.latest() == []


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(300)
def test_kafkas_tool_manages_tokens_and_java_logs_in_with_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with_users(data, ["alice", "bob"])
    remote = next(remote for remote in REMOTES if remote.name == "java-new")
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="alice";',
    }
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in login.items()))
    node = NodeProcess(data, settings={"auth.required": "true"}, listen={"kafka": ANY, "console": "off"})
    with node, closing(Shell()) as shell:

        def run(*arguments: str) -> str:
            given = ["--bootstrap-server", node.kafka, "--command-config", str(config), *arguments]
            code, out, errors = shell.call(TOOL, given)
            assert code == 0, out + errors
            return out

        made = run("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
        token_id, hmac = re.search(r"([\w-]{36})\s+(\S+)\s+User:alice\s+User:alice", made).groups()  # type: ignore[union-attr]
        assert token_id in run("--describe", "--owner-principal", "User:alice")
        assert "Completed renew operation" in run("--renew", "--renew-time-period", "-1", "--hmac", hmac)
        with closing(remote.program.start()) as driver:
            by_token = {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
                f'username="{token_id}" password="{hmac}" tokenauth="true";',
            }
            client = RemoteClient(node.kafka, remote.name, remote.abilities, driver, by_token)
            client.create_topic("by-token", 1)
            client.produce("by-token", 0, [Rec(b"value")])
            assert [record.value for record in client.consume("by-token", {0: 1})] == [b"value"]
        assert "Completed expire operation" in run("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
        assert token_id not in run("--describe")
