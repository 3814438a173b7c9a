"""Signed tokens: what they prove, when they end, and what nobody can make of them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.auth import Principal
from bridges.auth.authenticator import Authenticator, AuthOptions
from bridges.auth.passwords import Cost, PasswordHash
from bridges.auth.tokens import Key, KeysError, TokenError, TokenExpired, TokenKeys, load_keys
from bridges.auth.users import User, change
from tests.kit.clock import Clock

ALICE = Principal("User", "alice")


class Lab:
    def __init__(self, path: Path, **options: int) -> None:
        self.path = path
        self.clock = Clock(1_700_000_000.0)
        self.options = AuthOptions(path / "users.json", path / "keys.json", **options)
        self.auth = Authenticator(self.options, self.clock)

    async def put(self, **passwords: str) -> None:
        def edit(users: dict[str, User]) -> None:
            users.clear()
            for name, text in passwords.items():
                users[name] = User(name, PasswordHash.from_password(text, Cost(16, 1, 1)), {})

        change(self.options.users_file, edit)
        await self.auth.load()


@pytest.fixture
async def lab(tmp_path: Path) -> Lab:
    made = Lab(tmp_path)
    await made.put(alice="wonder")
    return made


def parts(token: str) -> list[dict[str, object]]:
    return [json.loads(base64.urlsafe_b64decode(part + "===")) for part in token.split(".")[:2]]


async def test_a_token_says_who_and_for_how_long(lab: Lab) -> None:
    token = lab.auth.issue(ALICE, 600, "ydb", {"scope": ["a", "b"]})
    found = lab.auth.check(token, "ydb")
    assert (found.principal, found.expires, found.claims) == (ALICE, 1_700_000_600, {"scope": ["a", "b"]})
    head, content = parts(token)
    assert head["alg"] == "HS256"
    assert content["sub"] == "alice"
    assert content["exp"] - content["iat"] == 600
    assert "=" not in token
    with pytest.raises(TokenError, match="something else"):
        lab.auth.check(token, "pravega")
    with pytest.raises(ValueError, match="'exp'"):
        lab.auth.issue(ALICE, 600, "ydb", {"exp": 0})


async def test_a_token_ends(lab: Lab) -> None:
    token = lab.auth.issue(ALICE, 600, "ydb")
    lab.clock.now += 599
    lab.auth.check(token, "ydb")
    lab.clock.now += 1
    with pytest.raises(TokenExpired):
        lab.auth.check(token, "ydb")
    assert lab.auth.check(lab.auth.issue(ALICE, 10**9, "ydb"), "ydb").expires == lab.clock.now + 12 * 3600


async def test_principals_of_other_kinds_and_those_without_password_have_tokens_too(lab: Lab) -> None:
    for principal in (Principal("Service", "alice"), Principal("User", "cert only")):
        assert lab.auth.check(lab.auth.issue(principal, 60, "x"), "x").principal == principal


async def test_a_token_ends_with_its_user_and_with_the_password(lab: Lab) -> None:
    token = lab.auth.issue(ALICE, 600, "ydb")
    await lab.put(alice="other")
    with pytest.raises(TokenError, match="another password"):
        lab.auth.check(token, "ydb")
    token = lab.auth.issue(ALICE, 600, "ydb")
    await lab.put()
    with pytest.raises(TokenError, match="is gone"):
        lab.auth.check(token, "ydb")


async def test_what_others_sign_is_refused(lab: Lab, tmp_path: Path) -> None:
    token = lab.auth.issue(ALICE, 600, "ydb")
    other = Lab(tmp_path / "other")
    await other.put(alice="wonder")
    with pytest.raises(TokenError, match="not made here"):
        other.auth.check(token, "ydb")

    head, content = parts(token)
    forged = []
    for changed in ({**head, "alg": "none"}, {**head, "alg": "HS512"}):
        text = ".".join(
            base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=").decode() for one in (changed, content)
        )
        forged += [f"{text}.", f"{text}.{token.rpartition('.')[2]}"]
        signature = hmac.digest(b"", text.encode(), hashlib.sha256)
        forged.append(f"{text}.{base64.urlsafe_b64encode(signature).decode()}")
    for one in forged:
        with pytest.raises(TokenError):
            lab.auth.check(one, "ydb")


async def test_padding_does_not_matter(lab: Lab) -> None:
    token = lab.auth.issue(ALICE, 600, "ydb")
    lab.auth.check(token + "=", "ydb")


KEYS = TokenKeys([Key("one", b"k" * 32, 0, None)], b"")
TOKEN = KEYS.sign(ALICE, "ydb", 0, 600, {"n": 1}, None)


@given(st.integers(0, len(TOKEN) - 1), st.characters(codec="utf-8"), st.integers(0, 2))
def test_no_change_of_a_token_is_accepted(at: int, character: str, how: int) -> None:
    middle = ("", character + TOKEN[at:], character + TOKEN[at + 1 :])[how]
    changed = TOKEN[:at] + middle
    try:
        found = KEYS.read(changed, "ydb", 1)
    except TokenError:
        return
    # Base64 has several spellings of the signature; what was signed is what it was.
    assert changed.rpartition(".")[0] == TOKEN.rpartition(".")[0]
    assert found.principal == ALICE


@given(st.text())
def test_anything_else_is_refused_in_one_way(text: str) -> None:
    with pytest.raises(TokenError):
        KEYS.read(text, "ydb", 0)


async def test_an_old_key_is_accepted_until_its_last_token_has_ended(tmp_path: Path) -> None:
    lab = Lab(tmp_path, token_seconds=100, key_seconds=1000)
    await lab.auth.load()
    first = lab.auth.issue(ALICE, 100, "x")
    lab.clock.now += 999
    await lab.auth.refresh()
    last = lab.auth.issue(ALICE, 100, "x")
    assert parts(first)[0]["kid"] == parts(last)[0]["kid"]
    lab.clock.now += 1
    await lab.auth.refresh()
    newer = lab.auth.issue(ALICE, 100, "x")
    assert parts(newer)[0]["kid"] != parts(last)[0]["kid"]
    assert lab.auth.check(last, "x").principal == ALICE
    lab.clock.now += 98
    assert lab.auth.check(last, "x").principal == ALICE
    lab.clock.now += 1
    with pytest.raises(TokenExpired):
        lab.auth.check(last, "x")
    lab.clock.now += 901
    await lab.auth.refresh()
    document = json.loads((tmp_path / "keys.json").read_text())
    assert len(document["keys"]) == 2, "the first one is forgotten"


async def test_keys_last_over_restarts_and_are_shared_by_nodes_with_one_file(tmp_path: Path) -> None:
    first = Lab(tmp_path)
    await first.auth.load()
    token = first.auth.issue(ALICE, 600, "x")
    second = Lab(tmp_path)
    await second.auth.load()
    assert second.auth.check(token, "x").principal == ALICE
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"version": 2}', '{"version": 1, "keys": [{"id": "a", "key": "eA==", "made": 1, "until": null}]}'],
)
def test_damaged_keys_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.json").write_text(text)
    with pytest.raises(KeysError, match=r"keys\.json"):
        load_keys(tmp_path / "keys.json", 0, 10, 10)
