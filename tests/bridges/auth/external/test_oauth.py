"""Tokens of a server of logins: which are taken, and how its keys are followed."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from anabranch_kit.net.http_get import MOST_BYTES
from anabranch_kit.run.barrier import Barrier
from bridges.auth import Principal
from bridges.auth.authenticator import Authenticator, AuthOptions
from bridges.auth.external.jwks import KeySet, parse
from bridges.auth.external.oauth import LONGEST_TOKEN, OAuth, OAuthOptions
from bridges.auth.tokens import KeysError, TokenError, TokenExpired
from tests.logins import AUDIENCE, ISSUER, Logins

ALGORITHMS = ["RS256", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"]


def options(keys: Path | str, **more: Any) -> OAuthOptions:
    return OAuthOptions(str(keys), **{"issuer": ISSUER, "audience": AUDIENCE, **more})


async def opened(path: Path, logins: Logins, clock: Callable[[], float] = time.time, **more: Any) -> OAuth:
    path.write_text(logins.text())
    oauth = OAuth(options(path, **more), clock, Barrier())
    await oauth.load()
    return oauth


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_token_says_who_somebody_is(tmp_path: Path, algorithm: str) -> None:
    logins = Logins(algorithm)
    oauth = await opened(tmp_path / "keys.json", logins)
    found = oauth.check(logins.token("alice", groups=["x"] * 100))
    assert found.principal == Principal("User", "alice")
    assert abs(found.expires - time.time() - 600) < 5


async def test_the_name_is_in_the_claim_that_is_set(tmp_path: Path) -> None:
    logins = Logins()
    oauth = await opened(tmp_path / "keys.json", logins, claim="email")
    assert oauth.check(logins.token("7", email="alice@home")).principal.name == "alice@home"
    for named in (None, 7, "", "a" * 257, "a\nb", "ANONYMOUS"):
        with pytest.raises(TokenError):
            oauth.check(logins.token("7", email=named))


def unsigned(token: str) -> str:
    _, content, _ = token.split(".")
    return f"{_encoded({'alg': 'none', 'typ': 'JWT'})}.{content}."


def signed_with_the_public_key(logins: Logins, token: str) -> str:
    """What a checker takes that lets a token say by which algorithm it was signed."""
    _, content, _ = token.split(".")
    text = f"{_encoded({'alg': 'HS256', 'kid': logins.latest})}.{content}"
    secret = json.dumps(logins.published()["keys"][0]).encode()
    return f"{text}.{_base64(hmac.digest(secret, text.encode(), 'sha256'))}"


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _encoded(content: Any) -> str:
    return _base64(json.dumps(content).encode())


async def test_what_is_not_taken(tmp_path: Path) -> None:
    logins, others = Logins(), Logins()
    oauth = await opened(tmp_path / "keys.json", logins)
    good = logins.token("alice")
    oauth.check(good)
    head, content, signature = good.split(".")
    bad = {
        "another's signature": others.token("alice"),
        "a key that is not known": logins.token("alice", headers={"kid": "other"}),
        "a key that is no name": f"{_encoded({'alg': 'ES256', 'kid': ['x']})}.{content}.{signature}",
        "changed": f"{head}.{_encoded({'sub': 'bob', 'exp': 2**40})}.{signature}",
        "not signed": unsigned(good),
        "signed with what everybody has": signed_with_the_public_key(logins, good),
        "for somebody else": logins.token("alice", aud="other"),
        "for nobody": logins.token("alice", aud=None),
        "of somebody else": logins.token("alice", iss="https://other.test"),
        "of nobody": logins.token("alice", iss=None),
        "without an end": logins.token("alice", exp=None),
        "with an end that is none": logins.token("alice", exp="soon"),
        "with an end beyond all numbers": f"{head}.{_encoded({'exp': 1e999})}.{signature}",
        "not valid yet": logins.token("alice", nbf=time.time() + 100),
        "too long": good + "A" * LONGEST_TOKEN,
        "no token": "x",
        "half a one": head,
        "letters that no token has": "ä.ö.ü",
        "nested": f"{_base64(b'[' * 20_000)}.{content}.{signature}",
        "a critical extension": logins.token("alice", headers={"crit": ["x"], "x": 1}),
    }
    taken = []
    for what, token in bad.items():
        with suppress(TokenError):
            taken.append((what, oauth.check(token)))
    assert not taken


async def test_a_token_ends(tmp_path: Path) -> None:
    logins, now = Logins(), time.time()
    oauth = await opened(tmp_path / "keys.json", logins, lambda: now)
    token = logins.token("alice", exp=int(now) + 10)
    now += 39
    assert oauth.check(token).expires == int(now) - 29, "clocks may differ by half a minute"
    now += 2
    with pytest.raises(TokenExpired):
        oauth.check(token)


async def test_whom_a_token_is_for_or_who_made_it_must_be_set(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match=r"oauth_audience.*oauth_issuer"):
        await opened(tmp_path / "keys.json", Logins(), issuer="", audience="")
    logins = Logins()
    oauth = await opened(tmp_path / "keys.json", logins, audience="")
    assert oauth.check(logins.token("alice", aud="other"))
    oauth = await opened(tmp_path / "keys.json", logins, issuer="")
    assert oauth.check(logins.token("alice", iss="other", aud=["x", AUDIENCE]))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"keys": {}}', '{"keys": []}', '{"keys": [7, {"kty": "?"}]}', "[" * 99_999]
)
async def test_a_file_without_keys_is_told_at_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.json").write_text(text)
    with pytest.raises(KeysError, match=r"keys\.json"):
        await OAuth(options(tmp_path / "keys.json"), time.time, Barrier()).load()
    with pytest.raises(KeysError, match=r"none\.json"):
        await OAuth(options(tmp_path / "none.json"), time.time, Barrier()).load()


def test_secrets_and_keys_for_other_uses_are_no_keys() -> None:
    logins = Logins()
    (public,) = logins.published()["keys"]
    secret = {"kty": "oct", "k": _base64(b"x" * 32), "kid": "s"}
    found = parse(json.dumps({"keys": [secret, {**public, "use": "enc", "kid": "e"}, {**public, "kid": 7}]}).encode())
    assert list(found) == [None]


async def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    logins = Logins()
    path = tmp_path / "keys.json"
    oauth = await opened(path, logins)
    old = logins.token("alice")
    del logins.keys[logins.turn("ES384") and "key-0"]
    new = logins.token("alice")
    with pytest.raises(TokenError):
        oauth.check(new)
    path.write_text("nonsense, which is logged")
    await oauth.refresh()
    assert oauth.check(old)
    path.write_text(logins.text())
    await oauth.refresh()
    assert oauth.check(new)
    with pytest.raises(TokenError):
        oauth.check(old)


class Place:
    """A server that tells keys, and how often it was asked."""

    def __init__(self, logins: Logins) -> None:
        self.logins = logins
        self.asked = 0
        self.answer: Callable[[], web.StreamResponse] | None = None

    async def tell(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        return web.json_response(self.logins.published()) if self.answer is None else self.answer()


async def test_an_url_is_asked_again_but_not_as_often_as_clients_like() -> None:
    logins = Logins()
    place = Place(logins)
    app = web.Application()
    app.router.add_get("/keys", place.tell)
    now = 0.0
    async with TestServer(app) as server:
        keys = KeySet(f"http://127.0.0.1:{server.port}/keys", 3600, lambda: now, Barrier())
        await keys.load()
        assert keys.find("key-0") is not None

        async def later(seconds: float) -> None:
            nonlocal now
            now += seconds
            await keys.refresh()
            if keys.asking is not None:
                await keys.asking

        await later(60)
        assert place.asked == 1
        logins.turn()
        assert keys.find("key-1") is None
        await later(1)
        assert place.asked == 2, "a key that is not known may be new"
        assert keys.find("key-1") is not None
        for _ in range(9):
            assert keys.find("made up") is None
            await later(1)
        assert place.asked == 2, "what clients send does not decide how often"
        await later(2)
        assert place.asked == 3

        def too_long() -> web.StreamResponse:
            return web.Response(body=b" " * (MOST_BYTES + 1))

        answers: list[Callable[[], web.StreamResponse]] = [
            lambda: web.Response(status=500),
            lambda: web.Response(status=302, headers={"Location": "/keys"}),
            lambda: web.Response(text="nonsense"),
            too_long,
        ]
        for place.answer in answers:
            await later(3601)
            assert keys.find("key-1") is not None, "what was known stays"
        assert place.asked == 3 + len(answers)
    await later(3601)
    assert keys.find("key-1") is not None
    keys.close()


async def test_a_server_of_logins_that_is_away_keeps_no_node_from_starting() -> None:
    async with TestServer(web.Application()) as server:
        port = server.port
    keys = KeySet(f"http://127.0.0.1:{port}/keys", 3600, time.monotonic, Barrier())
    await keys.load()
    assert keys.find("x") is None
    with pytest.raises(KeysError, match="https"):
        await KeySet("http://elsewhere.test/keys", 3600, time.monotonic, Barrier()).load()


async def test_both_kinds_of_tokens_are_told_apart(tmp_path: Path) -> None:
    logins = Logins()
    (tmp_path / "keys.json").write_text(logins.text())
    here = tmp_path / "users.json", tmp_path / "tokens.json"
    both = Authenticator(AuthOptions(*here, oauth=options(tmp_path / "keys.json")))
    await both.load()
    ours = both.issue(Principal("User", "alice"), 60, "front")
    theirs = logins.token("bob")
    assert both.check(ours, "front").principal.name == "alice"
    assert both.check(theirs, "front").principal.name == "bob"
    with pytest.raises(TokenError, match="something else"):
        both.check(ours, "other")
    for wrong in ("", "x", "x.y.z"):
        with pytest.raises(TokenError):
            both.check(wrong, "front")
    without = Authenticator(AuthOptions(*here))
    await without.load()
    assert not without.takes_oauth
    for call in (lambda: without.check(theirs, "front"), lambda: without.bearer(theirs)):
        with pytest.raises(TokenError):
            call()
    assert jwt.get_unverified_header(ours)["alg"] == "HS256"
    await asyncio.sleep(0)
    both.close()
