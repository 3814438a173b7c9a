"""Finds out who a client is: by name and password, or by a token that was given to somebody who had them."""

from __future__ import annotations

import asyncio
import hmac
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from anabranch_kit.run.barrier import Barrier
from bridges.auth import ANONYMOUS, Principal
from bridges.auth.comparisons import AuthenticationBusy, Comparisons
from bridges.auth.oauth import OAuth, OAuthOptions
from bridges.auth.passwords import LONGEST_PASSWORD, PasswordHash
from bridges.auth.private_file import stamp
from bridges.auth.scram import ScramError, ScramExchange, ScramKeys, Shape, shapes_of
from bridges.auth.sessions import Sessions
from bridges.auth.tokens import KeysError, Token, TokenError, TokenKeys, load_keys
from bridges.auth.users import User, Users, UsersError, change, load

#: Passwords that were right and need not be compared again: about 200 bytes each.
_MOST_KNOWN = 10_000

__all__ = ["AuthOptions", "AuthenticationBusy", "Authenticator"]

log = structlog.get_logger(__name__)


class AuthOptions(Struct, frozen=True):
    """``required``: nobody may do anything without saying who it is; ``at`` has the listeners, by name, at which that
    is different; ``oauth``: whose tokens are taken besides the node's own. Times are in seconds."""

    users_file: Path
    keys_file: Path
    required: bool = False
    at: Mapping[str, bool] = {}
    token_seconds: int = 12 * 3600
    key_seconds: int = 30 * 24 * 3600
    oauth: OAuthOptions | None = None


class Authenticator:
    """Users and tokens of a node. Belongs to the event loop; slow work is done in threads of its own.

    :meth:`load` before anything else. ``clock`` tells seconds since 1970.
    """

    def __init__(
        self, options: AuthOptions, clock: Callable[[], float] = time.time, barrier: Barrier | None = None
    ) -> None:
        self.required = options.required
        self.sessions = Sessions(self._credential, barrier)
        """What is under way in users' names: told when they are gone, or have other passwords."""
        self.succeeded = 0
        """Passwords that were right so far."""
        self.failed = 0
        """Passwords and tokens that were not."""
        self._options = options
        self._clock = clock
        self._users: Users = {}
        self._users_stamp: object = None
        self._shapes: Mapping[str, Mapping[Shape, int]] = {}
        self._keys: TokenKeys | None = None
        self._oauth = None if options.oauth is None else OAuth(options.oauth, clock, barrier or Barrier())
        self._nobody = PasswordHash.of_nobody()
        self._secret = os.urandom(32)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._comparisons = Comparisons()
        # What was read first is taken first, or older users would follow newer ones.
        self._reading = asyncio.Lock()
        self._altering = asyncio.Lock()

    def required_at(self, listener: str) -> bool:
        """Whether clients of a listener must say who they are."""
        return self._options.at.get(listener, self.required)

    # --- files ------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read users and keys, and end the sessions of users who are gone or have other passwords. Raises UsersError,
        KeysError."""
        await self._load()
        if self._oauth is not None:
            await self._oauth.load()

    async def _load(self) -> None:
        async with self._reading:
            read, users, keys = await asyncio.to_thread(self._read)
            if users is not None:
                shapes = await asyncio.to_thread(shapes_of, [user.scram for user in users.values()])
            changed = self._take(read, users, keys)
            if changed:
                self._shapes = shapes
        if changed:
            await self.sessions.look()

    async def refresh(self) -> None:
        """Read again what has changed; what is wrong is logged, and what was known stays."""
        if self._oauth is not None:
            await self._oauth.refresh()
        try:
            await self._load()
        except (UsersError, KeysError) as error:
            log.error("users and keys stay what they were", reason=str(error))

    async def alter(self, edit: Callable[[dict[str, User]], None]) -> None:
        """Have ``edit`` change the users, in a thread; when this returns it is in the file and holds here. Raises
        UsersError, and what ``edit`` raises, of which nothing is done."""
        async with self._altering:  # whoever waits for the file holds a thread
            await asyncio.to_thread(change, self._options.users_file, edit)
        try:
            await self._load()
        except KeysError as error:
            log.error("users and keys stay what they were", reason=str(error))

    def _read(self) -> tuple[object, Users | None, TokenKeys]:
        options = self._options
        # Once they are known they are changed, never made: where the file is gone, somebody has taken it away.
        make = self._keys is None
        keys = load_keys(options.keys_file, int(self._clock()), options.key_seconds, options.token_seconds, make=make)
        try:
            now = stamp(options.users_file)
        except OSError as error:
            raise UsersError(f"{options.users_file}: {error.strerror or error}") from None
        # Taken before the file is read: a change after it is found the next time.
        return now, None if now == self._users_stamp else load(options.users_file), keys

    def _take(self, read: object, users: Users | None, keys: TokenKeys) -> bool:
        self._keys = keys
        if users is None:
            return False
        if users or self._users:
            log.info("users were read", users=len(users))
        self._users, self._users_stamp = users, read
        costs = [user.password.cost for user in users.values() if user.password is not None]
        if costs:
            # A name that nobody has must take as long as the others.
            self._nobody = PasswordHash.of_nobody(max(costs, key=lambda cost: cost.n * cost.r * cost.p))
        return True

    def close(self) -> None:
        """Compare nothing any more."""
        self._comparisons.close()
        if self._oauth is not None:
            self._oauth.close()

    # --- passwords --------------------------------------------------------------------------------------------------

    @property
    def users(self) -> Users:
        """What is known of users, by name."""
        return self._users

    def scram(self, mechanism: str) -> ScramExchange:
        """A login with SCRAM, of which :meth:`proved` and :meth:`refused` tell how it ended."""

        def find(name: str) -> ScramKeys | None:
            user = self._users.get(name)
            return None if user is None else user.scram.get(mechanism)

        return ScramExchange(mechanism, find, self.keys.salts, self._shapes.get(mechanism, {}))

    def proved(self, exchange: ScramExchange) -> Principal:
        """Who has come to the end of a login with SCRAM. Raises ScramError if the keys that it began with are not the
        user's any more."""
        user = self._users.get(exchange.name)
        if user is None or user.scram.get(exchange.mechanism) != exchange.keys:
            raise ScramError("the user was removed meanwhile, or has another password now")
        return self._logged_in(exchange.name)

    def _logged_in(self, name: str) -> Principal:
        self.succeeded += 1
        return Principal(ANONYMOUS.kind, name)

    def refused(self) -> None:
        """Somebody has failed to prove who it is."""
        self.failed += 1

    async def verify(self, name: str, password: str, source: str = "") -> Principal | None:
        """Who this is, None if name and password do not belong together. Raises AuthenticationBusy.

        ``source`` is the client's address: who guesses from one keeps nobody out who comes from another.
        Takes a few hundred milliseconds, as long for a name that does not exist as for a wrong password; a few
        microseconds for what was right before.
        """
        if len(password) > LONGEST_PASSWORD or len(name) > LONGEST_PASSWORD:
            self.refused()
            return None
        user = self._users.get(name)
        if user is not None and user.password is None:
            user = None  # it has keys for SCRAM alone, and takes as long as nobody
        expected = self._nobody if user is None or user.password is None else user.password
        try:
            key = self._key(name, password, expected)
        except UnicodeEncodeError:  # half a character, as JSON can have: no password holds one
            self.refused()
            return None
        if user is not None and key in self._known:
            self._known.move_to_end(key)
        elif (
            not await self._comparisons.compare(key, name, source, partial(expected.matches, password))
            or user is None
            or self._users.get(name) != user
        ):
            self.refused()
            return None
        else:
            self._known[key] = None
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return self._logged_in(name)

    def _key(self, name: str, password: str, expected: PasswordHash) -> bytes:
        # With the hash in it: what was right before a change of password is not found after it.
        content = b"\0".join((name.encode(), expected.digest, password.encode()))
        return hmac.digest(self._secret, content, "sha256")

    # --- tokens -----------------------------------------------------------------------------------------------------

    def issue(self, principal: Principal, seconds: int, audience: str, claims: Mapping[str, Any] | None = None) -> str:
        """A token that says for ``seconds``, though not longer than the setting allows, who its owner is.

        ``audience`` is what it is for, for instance the name of a front: :meth:`check` takes it for nothing else.
        """
        return self.keys.sign(
            principal,
            audience,
            int(self._clock()),
            max(1, min(seconds, self._options.token_seconds)),
            claims or {},
            self._fingerprint(principal),
        )

    def check(self, token: str, audience: str) -> Token:
        """What a token says. Raises TokenExpired, or TokenError for any other reason why it is not valid.

        A token of a user ends with the user, and with the password it had. Those of somebody else are taken as well, if
        ``auth.oauth_keys`` says whose, and end when they say.
        """
        try:
            if self._oauth is not None and not self.keys.has_signed(token):
                return self._oauth.check(token)
            found = self.keys.read(token, audience, int(self._clock()))
            if found.credential != self._fingerprint(found.principal):
                raise TokenError("the token's owner has another password now, or is gone")
        except TokenError:
            self.refused()
            raise
        return found

    @property
    def takes_oauth(self) -> bool:
        """Whether users may show tokens of a server of logins."""
        return self._oauth is not None

    def bearer(self, token: str) -> Token:
        """What a token of a server of logins says, for a login of its own; counted as one. Raises TokenExpired,
        TokenError."""
        if self._oauth is None:
            raise TokenError("tokens are not taken here")
        found = self._oauth.check(token)
        self.succeeded += 1
        return found

    @property
    def keys(self) -> TokenKeys:
        """What tokens are signed with, as it was read last."""
        assert self._keys is not None, "loaded first"
        return self._keys

    def _fingerprint(self, principal: Principal) -> str | None:
        user = self._users.get(principal.name) if principal.kind == ANONYMOUS.kind else None
        return None if user is None else user.fingerprint

    def _credential(self, principal: Principal, mechanism: str) -> object:
        if not mechanism:
            return self._fingerprint(principal)
        user = self._users.get(principal.name)
        return None if user is None else user.scram.get(mechanism)
