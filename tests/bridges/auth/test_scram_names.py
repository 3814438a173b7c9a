"""SCRAM does not tell which users there are (RFC 5802, section 9: nor does anything else that a stranger may ask)."""

from __future__ import annotations

import json
import secrets
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from bridges.auth.authenticator import Authenticator, AuthOptions
from bridges.auth.passwords import Cost, PasswordHash
from bridges.auth.scram import ITERATIONS, MECHANISMS, ScramExchange, ScramKeys, Shape
from bridges.auth.users import User, change

NAMES = ("alice", "bare", "nobody", "nobody else")


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users.json"

    def edit(found: dict[str, User]) -> None:
        password = PasswordHash.from_password("wonder", Cost(16, 1, 1))
        keys = {mechanism: ScramKeys.from_password("wonder", mechanism) for mechanism in MECHANISMS}
        found.update(alice=User("alice", password, keys), bare=User("bare", password, {}))

    change(path, edit)
    return path


async def told(users: Path, clock: Callable[[], float] = lambda: 1e9) -> dict[tuple[str, str], tuple[bytes, bytes]]:
    """Salt and iterations that a node which has just started answers with, by name and mechanism."""
    auth = Authenticator(AuthOptions(users, users.with_name("keys.json"), key_seconds=1000, token_seconds=10), clock)
    await auth.load()
    found = {}
    for name in NAMES:
        for mechanism in MECHANISMS:
            answer = auth.scram(mechanism).first(f"n,,n={name},r=abc".encode())
            _, salt, iterations = answer.split(b",")
            found[name, mechanism] = salt, iterations
    auth.close()
    return found


async def test_a_name_that_nobody_has_is_answered_as_one_that_somebody_has(users: Path) -> None:
    first = await told(users)
    assert len({salt for salt, _ in first.values()}) == len(first), "each name has a salt for each mechanism"
    assert len({(len(salt), iterations) for salt, iterations in first.values()}) == 1
    assert await told(users) == first, "after a restart it is the same one"
    for later in (2e9, 3e9, 4e9):  # keys have had successors, and the first one has ended
        assert await told(users, lambda at=later: at) == first
    assert first["nobody", "SCRAM-SHA-256"] != (await told(users))["nobody else", "SCRAM-SHA-256"]


async def test_it_stays_the_same_where_an_earlier_release_wrote_the_keys(users: Path) -> None:
    await told(users)
    path = users.with_name("keys.json")
    document = json.loads(path.read_text())
    del document["salts"]
    path.write_text(json.dumps(document))
    first = await told(users)
    assert await told(users) == first
    assert await told(users, lambda: 2e9) == first
    assert await told(users, lambda: 3e9) == first


async def test_nobody_can_work_it_out_who_does_not_have_the_keys(users: Path) -> None:
    first = await told(users)
    users.with_name("keys.json").unlink()
    again = await told(users)
    assert all((first[place] == again[place]) == (place[0] == "alice") for place in first)


def kafka_salt() -> bytes:
    """As Kafka's tools make one."""
    number, digits = secrets.randbits(130), ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits.encode()


async def test_names_that_nobody_has_are_answered_as_users_of_every_making_are(users: Path) -> None:
    """Of the node's own command, of kafka-configs and of a tool with a salt of 64 bytes."""

    def edit(found: dict[str, User]) -> None:
        made = [(4096, kafka_salt()) for _ in range(60)]
        made += [(8192, secrets.token_bytes(64)) for _ in range(20)]
        made += [(ITERATIONS, secrets.token_bytes(16)) for _ in range(20)]
        for number, (iterations, salt) in enumerate(made):
            keys = ScramKeys.from_salted("SCRAM-SHA-256", salt, iterations, b"salted")
            found[f"user{number}"] = User(f"user{number}", None, {"SCRAM-SHA-256": keys})
        del found["alice"]

    def shapes(names: Iterable[str], exchanges: Callable[[], ScramExchange]) -> Counter[Shape]:
        def seen(name: str) -> Shape:
            _, salt, iterations = exchanges().first(f"n,,n={name},r=abc".encode()).split(b",")
            raw = b64decode(salt[2:])
            return Shape(int(iterations[2:]), len(raw), raw.isalnum() and raw == raw.lower())

        return Counter(map(seen, names))

    change(users, edit)
    auth = Authenticator(AuthOptions(users, users.with_name("keys.json")))
    await auth.load()
    known = shapes((f"user{n}" for n in range(100)), lambda: auth.scram("SCRAM-SHA-256"))
    unknown = shapes((f"nobody{n}" for n in range(1000)), lambda: auth.scram("SCRAM-SHA-256"))
    assert set(unknown) <= set(known)
    assert all(abs(unknown[shape] - 10 * known[shape]) < 100 for shape in known)
    auth.close()
