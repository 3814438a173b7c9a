"""Credentials that tools make, change and delete (KIP-554): in the users file when they are told so."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from bridges.auth.users import load
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode as E
from tests.conftest import TEST_SETTINGS
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.node_lab import serving
from tests.kafka_front.test_reauthentication import log_in
from tests.kafka_front.test_sasl import METADATA, put
from tests.node_process import ANY, NodeProcess

SECONDS = 30.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    data = tmp_path / "data"
    put(data / "users.json", root="secret")
    listen = {"kafka": ANY, "console": "off"}
    rules = {"auth.required": "true", "auth.rules": "deny", "auth.super_users": "User:root"}
    made = NodeProcess(data, settings={**TEST_SETTINGS, **rules}, listen=listen)
    made.start()
    yield made
    made.dispose()


def admin(node: NodeProcess, user: str, password: str, mechanism: str) -> AdminClient:
    login = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password, "log_level": "0"}
    return AdminClient({"bootstrap.servers": node.kafka, "security.protocol": "SASL_PLAINTEXT", **login})


def upsertion(name: str, password: str) -> UserScramCredentialUpsertion:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    return UserScramCredentialUpsertion(name, info, password.encode(), os.urandom(16))


def alter(client: AdminClient, *changes: Any) -> None:
    for done in client.alter_user_scram_credentials(list(changes)).values():
        done.result(SECONDS)


def gets_in(node: NodeProcess, password: str, mechanism: str = "SCRAM-SHA-256") -> bool:
    try:
        return bool(admin(node, "carol", password, mechanism).list_topics(timeout=3).brokers)
    except KafkaException:
        return False


def test_a_tool_makes_changes_and_deletes_a_user(node: NodeProcess) -> None:
    root = admin(node, "root", "secret", "SCRAM-SHA-512")
    alter(root, upsertion("carol", "first"))
    node.kill()
    node.start()
    root = admin(node, "root", "secret", "SCRAM-SHA-512")
    assert gets_in(node, "first")
    assert not gets_in(node, "first", "PLAIN"), "nobody here has seen the password"
    described = root.describe_user_scram_credentials(["carol"])["carol"].result(SECONDS)
    assert [(one.mechanism, one.iterations) for one in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 4096)
    ]
    carol = admin(node, "carol", "first", "SCRAM-SHA-256")
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        alter(carol, upsertion("carol", "mine"))
    alter(root, upsertion("carol", "second"))
    assert gets_in(node, "second"), "as soon as it was told"
    assert not gets_in(node, "first")
    alter(root, UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_256))
    assert not gets_in(node, "second")
    assert set(load(node.data / "users.json")) == {"root"}
    with pytest.raises(KafkaException, match="RESOURCE_NOT_FOUND"):
        alter(root, UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_256))
    with pytest.raises(KafkaException, match="Attempt to describe a user credential that does not exist: carol"):
        root.describe_user_scram_credentials(["carol"])["carol"].result(SECONDS)


Deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion
Upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion


def of(name: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = b"salt", size: int = 32) -> Upsertion:
    return Upsertion(name, mechanism, iterations, salt, bytes(size))


async def test_what_cannot_be_is_refused_user_by_user(tmp_path: Path) -> None:
    path = tmp_path / "data" / "users.json"
    put(path, alice="wonder", bob="builder")
    before = load(path)
    cases: list[tuple[str, E, list[Deletion], list[Upsertion]]] = [
        ("", E.UNACCEPTABLE_CREDENTIAL, [], [of("")]),
        ("a:b", E.UNACCEPTABLE_CREDENTIAL, [], [of("a:b")]),
        ("ANONYMOUS", E.UNACCEPTABLE_CREDENTIAL, [], [of("ANONYMOUS")]),
        ("few", E.UNACCEPTABLE_CREDENTIAL, [], [of("few", iterations=4095)]),
        ("many", E.UNACCEPTABLE_CREDENTIAL, [], [of("many", iterations=16385)]),
        ("unsalted", E.UNACCEPTABLE_CREDENTIAL, [], [of("unsalted", salt=b"")]),
        ("salted", E.UNACCEPTABLE_CREDENTIAL, [], [of("salted", salt=bytes(1025))]),
        ("unhashed", E.UNACCEPTABLE_CREDENTIAL, [], [of("unhashed", size=0)]),
        ("hashed", E.UNACCEPTABLE_CREDENTIAL, [], [of("hashed", size=1025)]),
        ("other", E.UNSUPPORTED_SASL_MECHANISM, [], [of("other", 3)]),
        ("unknown", E.UNSUPPORTED_SASL_MECHANISM, [Deletion("unknown", 0)], []),
        ("twice", E.DUPLICATE_RESOURCE, [], [of("twice"), of("twice")]),
        ("", E.UNACCEPTABLE_CREDENTIAL, [Deletion("", 1)], [of("")]),
        ("alice", E.DUPLICATE_RESOURCE, [Deletion("alice", 1)], [of("alice")]),
        ("bob", E.UNACCEPTABLE_CREDENTIAL, [Deletion("bob", 2)], [of("bob", iterations=1)]),
        ("nobody", E.RESOURCE_NOT_FOUND, [Deletion("nobody", 1)], []),
        ("carol", E.NONE, [], [of("carol")]),
        ("dave", E.NONE, [], [of("dave", 2, size=32)]),
        ("erin", E.NONE, [], [of("erin", size=64)]),
    ]
    request = m.AlterUserScramCredentialsRequest(
        [one for _, _, deletions, _ in cases for one in deletions],
        [one for _, _, _, upsertions in cases for one in upsertions],
    )
    async with serving(tmp_path) as node:
        address = node.addresses["kafka"]
        async with WireClient(address.host, address.port) as client:
            answer = await client.call(0, request)
            assert {one.user: one.error_code for one in answer.results} == {name: code for name, code, *_ in cases}
            assert all(bool(one.error_message) == bool(one.error_code) for one in answer.results)
            texts = {one.user: one.error_message for one in answer.results}
            assert (texts[""], texts["other"]) == ("Username must not be empty", "Unknown SCRAM mechanism")
            found = load(path)
            for made in ("carol", "dave", "erin"):
                assert found.pop(made).password is None
            assert found == before
            assert (await client.call(0, m.AlterUserScramCredentialsRequest())).results == []


async def test_keys_and_password_of_a_user_are_two_things(tmp_path: Path) -> None:
    path = tmp_path / "data" / "users.json"
    put(path, alice="wonder")
    async with serving(tmp_path, {"auth.required": "true"}) as node:
        address = node.addresses["kafka"]
        async with WireClient(address.host, address.port) as client:
            assert (await log_in(client, "alice", "wonder")).error_code == 0
            salted = hashlib.pbkdf2_hmac("sha256", b"land", b"salt", 4096)
            request = m.AlterUserScramCredentialsRequest(
                [Deletion("alice", 2)], [Upsertion("alice", 1, 4096, b"salt", salted)]
            )
            (done,) = (await client.call(0, request)).results
            assert done.error_code == 0
            assert (await client.call(9, METADATA)).brokers, "who came with the password stays"
            assert list(load(path)["alice"].scram) == ["SCRAM-SHA-256"]
            await client.call(0, m.AlterUserScramCredentialsRequest([Deletion("alice", 1)]))
            assert (await client.call(9, METADATA)).brokers
        alice = load(path)["alice"]
        assert alice.password is not None
        assert not alice.scram


async def test_a_file_that_cannot_be_used_is_told_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "data" / "users.json"
    put(path, alice="wonder")
    async with serving(tmp_path) as node:
        path.write_text("no users")
        address = node.addresses["kafka"]
        async with WireClient(address.host, address.port) as client:
            (done,) = (await client.call(0, m.AlterUserScramCredentialsRequest([], [of("carol")]))).results
            assert done.error_code == E.UNKNOWN_SERVER_ERROR
            assert str(tmp_path) not in done.error_message
        assert path.read_text() == "no users"
        assert set(node.authenticator.users) == {"alice"}


def test_a_user_without_any_credential_is_no_user(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text(json.dumps({"version": 1, "users": {"alice": {}}}))
    with pytest.raises(Exception, match="neither a password nor keys"):
        load(path)
