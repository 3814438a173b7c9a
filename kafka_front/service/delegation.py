"""Delegation tokens (KIP-48, KIP-373): passwords that a user requests for programs, and that end by themselves.

A token's password is the HMAC of its id, whose key derives from the file of keys that all nodes share; the database has
no secrets. A token logs in through SCRAM, with its id as the name, until it expires. It never outlives a user of the
users file who owns it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from base64 import b64encode
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from anabranch_kit.run.clock import now_ms
from bridges.auth import Principal
from bridges.auth.scram import ScramKeys
from bridges.catalog.database.following import KeyedRows
from bridges.catalog.database.sql import Connection
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.node.front import NodeServices
    from kafka_front.settings import KafkaSettings

MOST_RENEWERS = 100
_MOST = 10_000
_MOST_OF_ONE = 1_000
"""Most tokens, and most that one client has requested."""
_ITERATIONS = 4096
"""The fewest that clients accept. The password is 64 random bytes, which no number of guesses finds."""
_OWNER_KNOWN_MS = 60_000
"""Age of a token after which every node has read the users file with its owner."""
_TABLE = "front_kafka_delegation_tokens"
_ROWS = KeyedRows(_TABLE, "id", "token")


class DelegationToken(Struct, frozen=True):
    """A token. Times are in ms since 1970; ``ends_ms`` is the latest that a renewal may set ``expires_ms`` to.

    ``of_user``: its owner was in the users file when it was issued.
    """

    id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    expires_ms: int
    ends_ms: int
    of_user: bool

    def concerns(self, principal: Principal) -> bool:
        """Return whether a principal may describe, renew and expire the token without any further right."""
        return principal in (self.owner, self.requester, *self.renewers)


class DelegationTokens:
    """The tokens of all nodes. A change is durable before it takes effect."""

    def __init__(self, node: NodeServices, settings: KafkaSettings) -> None:
        self._db = node.db
        self._authenticator = node.authenticator
        self._settings = settings
        self._tokens: dict[str, DelegationToken] = {}
        self._ids: dict[bytes, str] = {}
        """The id of each token by its HMAC."""
        self._keys: dict[str, dict[str, ScramKeys]] = {}
        """SCRAM keys of tokens that have logged in, by id and mechanism."""
        self._removed = False

    async def load(self) -> None:
        """Read the stored tokens, and follow other nodes' changes from now on. Raises LogError."""
        self._db.changes.mirror(_TABLE, _ROWS.read, self._follow)
        self._follow(await self._db.run(_ROWS.read), None)

    # --- logins -----------------------------------------------------------------------------------------------------

    def find(self, token_id: str) -> DelegationToken | None:
        """Return a token that may log in."""
        token = self._tokens.get(token_id)
        if token is None or token.expires_ms <= now_ms():
            return None
        return None if token.of_user and token.owner.name not in self._authenticator.users else token

    def find_owner(self, token_id: str) -> Principal | None:
        """Return the owner of a token that may log in, None for any other token."""
        token = self.find(token_id)
        return None if token is None else token.owner

    def find_keys(self, mechanism: str, token_id: str) -> ScramKeys | None:
        """Return a token's keys if :meth:`derive_keys` has derived them."""
        return None if self.find(token_id) is None else self._keys.get(token_id, {}).get(mechanism)

    async def derive_keys(self, mechanism: str, token_id: str) -> None:
        """Derive the keys of a token, which another node may have issued a moment ago."""
        if token_id not in self._tokens:
            await self._db.changes.latest()
        if self.find(token_id) is not None:
            password = b64encode(self.secret(token_id)).decode()
            keys = await asyncio.to_thread(ScramKeys.from_password, password, mechanism, _ITERATIONS)
            self._keys.setdefault(token_id, {})[mechanism] = keys

    def secret(self, token_id: str) -> bytes:
        """Return the HMAC of a token."""
        return hmac.digest(self._authenticator.keys.salts, b"delegation token\0" + token_id.encode(), "sha512")

    # --- requests ---------------------------------------------------------------------------------------------------

    async def latest(self) -> list[DelegationToken]:
        """Return all tokens, also those that another node has just issued."""
        await self._db.changes.latest()
        return list(self._tokens.values())

    async def issue(
        self, owner: Principal, requester: Principal, renewers: tuple[Principal, ...], lifetime_ms: int
    ) -> DelegationToken:
        """Issue a token that may be renewed for ``lifetime_ms``; 0 or less: for as long as the settings allow. Raises
        KafkaError, LogError."""
        settings, now = self._settings, now_ms()
        ends = now + _shorter(settings.delegation_token_max_lifetime_ms, lifetime_ms)
        expires = min(ends, now + settings.delegation_token_expiry_ms)
        of_user = owner.kind == "User" and owner.name in self._authenticator.users
        token = DelegationToken(str(uuid4()), owner, requester, renewers, now, expires, ends, of_user)

        async def store() -> DelegationToken:
            requested = sum(one.requester == requester for one in self._tokens.values())
            if len(self._tokens) >= _MOST or requested >= _MOST_OF_ONE:
                text = f"there are {len(self._tokens)} delegation tokens (at most {_MOST}), {requested} of them "
                text += f"requested by {requester} (at most {_MOST_OF_ONE}): expire some"
                raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
            return await self._store(token)

        return await self._db.changes.settle(store)

    async def renew(self, secret: bytes, principal: Principal, period_ms: int) -> int:
        """Move a token's expiry to ``period_ms`` from now; 0 or less: as far as the settings allow. Return the expiry.

        Raises KafkaError, LogError.
        """

        async def store() -> int:
            token, now = self._owned(secret, principal), now_ms()
            _require_valid(token, now)
            expires = min(token.ends_ms, now + _shorter(self._settings.delegation_token_expiry_ms, period_ms))
            return (await self._store(replace(token, expires_ms=expires))).expires_ms

        await self._db.changes.latest()
        return await self._db.changes.settle(store)

    async def expire(self, secret: bytes, principal: Principal, period_ms: int) -> int:
        """Have a token expire ``period_ms`` from now; below 0: remove it now. Return the expiry.

        Raises KafkaError, LogError.
        """

        async def store() -> int:
            token, now = self._owned(secret, principal), now_ms()
            if period_ms < 0:
                await self._remove([token.id])
                return now
            _require_valid(token, now)
            return (await self._store(replace(token, expires_ms=min(token.ends_ms, now + period_ms)))).expires_ms

        await self._db.changes.latest()
        expires = await self._db.changes.settle(store)
        await self.sweep(now_ms())
        return expires

    def _owned(self, secret: bytes, principal: Principal) -> DelegationToken:
        token = self._tokens.get(self._ids.get(secret, ""))
        if token is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "there is no token with this HMAC")
        if not token.concerns(principal):
            text = f"{principal} is neither owner, requester nor renewer of token {token.id}"
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, text)
        return token

    # --- storing ----------------------------------------------------------------------------------------------------

    async def sweep(self, now_ms: int) -> None:
        """Remove the tokens that have expired or lost their owner, and end the sessions of all that are gone. Raises
        LogError."""
        users = self._authenticator.users

        async def remove() -> None:
            # A user of this name who comes later is another one. Nodes hear of a new user within a second or so.
            old_ms = now_ms - _OWNER_KNOWN_MS
            over = [
                one.id
                for one in self._tokens.values()
                if one.expires_ms <= now_ms or (one.of_user and one.owner.name not in users and one.issued_ms < old_ms)
            ]
            if over:
                await self._remove(over)

        await self._db.changes.settle(remove)
        if self._removed:
            self._removed = False
            await self._authenticator.sessions.end_outdated()

    async def _store(self, token: DelegationToken) -> DelegationToken:
        row = (token.id, msgspec.json.encode(token).decode())
        await self._write([token.id], lambda connection: connection.execute(_ROWS.store, row), [row])
        return token

    async def _remove(self, ids: list[str]) -> None:
        rows = [(one,) for one in ids]
        await self._write(ids, lambda connection: connection.executemany(_ROWS.drop, rows), [])

    async def _write(self, ids: list[str], write: Callable[[Connection], object], rows: list[tuple[str, str]]) -> None:
        names = [json.dumps([one]) for one in ids]
        mark = self._db.changes.mark(_TABLE, names)

        def run(connection: Connection) -> None:
            mark(connection)
            write(connection)

        await self._db.run(run, flush=True, then=lambda _: self._follow(rows, names))

    def _follow(self, rows: list[tuple[str, str]], names: Collection[str] | None) -> None:
        """Take over the present rows of the tokens with these names (None: all)."""
        gone = set(self._tokens) if names is None else {json.loads(name)[0] for name in names}
        for token_id, text in rows:
            self._tokens[token_id] = msgspec.json.decode(text, type=DelegationToken)
            self._ids[self.secret(token_id)] = token_id
            gone.discard(token_id)
        for token_id in gone & self._tokens.keys():
            del self._tokens[token_id], self._ids[self.secret(token_id)]
            self._keys.pop(token_id, None)
            self._removed = True


def _require_valid(token: DelegationToken, now_ms: int) -> None:
    if token.expires_ms <= now_ms:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED, f"token {token.id} has expired")


def _shorter(most_ms: int, asked_ms: int) -> int:
    return min(most_ms, asked_ms) if asked_ms > 0 else most_ms


def _create(connection: Connection) -> None:
    connection.execute(f"CREATE TABLE {_TABLE} (id TEXT PRIMARY KEY, token TEXT NOT NULL) STRICT")


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_create,)
