"""The authenticator of a node: checks a client's name and password, or a token issued after such a login."""

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
from bridges.auth.external.kerberos import Kerberos, KerberosExchange, KerberosOptions
from bridges.auth.external.oauth import OAuth, OAuthOptions
from bridges.auth.passwords import LONGEST_PASSWORD, PasswordHash
from bridges.auth.private_file import stamp
from bridges.auth.scram import ScramError, ScramExchange, ScramKeys, Shape, shapes_of
from bridges.auth.sessions import Sessions
from bridges.auth.tokens import KeysError, Token, TokenError, TokenKeys, load_keys
from bridges.auth.users import User, Users, UsersError, change, load

#: How many successful passwords are remembered, so that they are not hashed again: about 200 bytes each.
_MOST_KNOWN = 10_000

__all__ = ["AuthOptions", "AuthenticationBusy", "Authenticator"]

log = structlog.get_logger(__name__)


class AuthOptions(Struct, frozen=True):
    """Settings of authentication. Times are in seconds.

    ``required``: clients must log in before they may do anything. ``at``: the same for single listeners, by name, where
    it differs. ``oauth``: the issuer whose tokens are accepted besides the node's own. ``kerberos``: the realm whose
    tickets are accepted.
    """

    users_file: Path
    keys_file: Path
    required: bool = False
    at: Mapping[str, bool] = {}
    token_seconds: int = 12 * 3600
    key_seconds: int = 30 * 24 * 3600
    oauth: OAuthOptions | None = None
    kerberos: KerberosOptions | None = None


class Authenticator:
    """The users and tokens of a node. Belongs to the event loop; slow work runs in its own threads.

    Call :meth:`load` first. ``clock`` returns seconds since 1970.
    """

    def __init__(
        self, options: AuthOptions, clock: Callable[[], float] = time.time, barrier: Barrier | None = None
    ) -> None:
        self.required = options.required
        self.sessions = Sessions(self._credential, barrier)
        """Sessions of users; each ends when its user is removed or gets another password."""
        self.succeeded = 0
        """Number of successful logins."""
        self.failed = 0
        """Number of passwords and tokens that were refused."""
        self._options = options
        self._clock = clock
        self._users: Users = {}
        self._users_stamp: object = None
        self._shapes: Mapping[str, Mapping[Shape, int]] = {}
        self._keys: TokenKeys | None = None
        self._oauth = None if options.oauth is None else OAuth(options.oauth, clock, barrier or Barrier())
        self._kerberos = None if options.kerberos is None else Kerberos(options.kerberos)
        self._nobody = PasswordHash.of_nobody()
        self._secret = os.urandom(32)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._comparisons = Comparisons()
        # Reads are applied in the order in which they were made, or an older file would replace a newer one.
        self._reading = asyncio.Lock()
        self._altering = asyncio.Lock()

    def required_at(self, listener: str) -> bool:
        """Return whether clients of a listener must log in."""
        return self._options.at.get(listener, self.required)

    # --- files ------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read users and keys, and end the sessions of users who are gone or have other passwords. Raises UsersError,
        KeysError."""
        await self._load()
        if self._oauth is not None:
            await self._oauth.load()
        if self._kerberos is not None:
            await self._kerberos.load()

    async def _load(self) -> None:
        async with self._reading:
            read, users, keys = await asyncio.to_thread(self._read)
            if users is not None:
                shapes = await asyncio.to_thread(shapes_of, [user.scram for user in users.values()])
            changed = self._take(read, users, keys)
            if changed:
                self._shapes = shapes
        if changed:
            await self.sessions.end_outdated()

    async def refresh(self) -> None:
        """Read the files again if they have changed. An error is logged, and the known users and keys stay in force."""
        if self._oauth is not None:
            await self._oauth.refresh()
        try:
            await self._load()
        except (UsersError, KeysError) as error:
            log.error("could not read users and keys; the former ones stay valid", reason=str(error))

    async def alter(self, edit: Callable[[dict[str, User]], None]) -> None:
        """Have ``edit`` change the users, in a thread. On return the change is in the file and in force here.

        Raises UsersError, and whatever ``edit`` raises; then its changes are dropped.
        """
        async with self._altering:  # a change that waits for the file's lock would hold a thread
            await asyncio.to_thread(change, self._options.users_file, edit)
        try:
            await self._load()
        except KeysError as error:
            log.error("could not read users and keys; the former ones stay valid", reason=str(error))

    def _read(self) -> tuple[object, Users | None, TokenKeys]:
        options = self._options
        # A missing file of keys is created only at the start. If it is missing later, it was removed: that is an error.
        make = self._keys is None
        keys = load_keys(options.keys_file, int(self._clock()), options.key_seconds, options.token_seconds, make=make)
        try:
            now = stamp(options.users_file)
        except OSError as error:
            raise UsersError(f"{options.users_file}: {error.strerror or error}") from None
        # The stamp is taken before the file is read, so that a change after it is noticed the next time.
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
            # A name without a user must take as long as the others.
            self._nobody = PasswordHash.of_nobody(max(costs, key=lambda cost: cost.n * cost.r * cost.p))
        return True

    def close(self) -> None:
        """Stop comparing passwords."""
        self._comparisons.close()
        if self._oauth is not None:
            self._oauth.close()
        if self._kerberos is not None:
            self._kerberos.close()

    # --- passwords --------------------------------------------------------------------------------------------------

    @property
    def users(self) -> Users:
        return self._users

    def scram(self, mechanism: str, find_token: Callable[[str], ScramKeys | None] | None = None) -> ScramExchange:
        """Begin a login with SCRAM; the caller reports its end with :meth:`proved` or :meth:`refused`.

        ``find_token`` returns the keys of a delegation token; without it, there are none.
        """

        def find(name: str) -> ScramKeys | None:
            user = self._users.get(name)
            return None if user is None else user.scram.get(mechanism)

        return ScramExchange(mechanism, find, self.keys.salts, self._shapes.get(mechanism, {}), find_token)

    def proved(self, exchange: ScramExchange) -> Principal:
        """Return the principal of a completed SCRAM login.

        Raises ScramError if the user's keys have changed since the login began.
        """
        user = self._users.get(exchange.name)
        if user is None or user.scram.get(exchange.mechanism) != exchange.keys:
            raise ScramError("the user was removed meanwhile, or has another password now")
        return self._logged_in(exchange.name)

    def _logged_in(self, name: str) -> Principal:
        self.succeeded += 1
        return Principal(ANONYMOUS.kind, name)

    def refused(self) -> None:
        """Count a failed login."""
        self.failed += 1

    async def verify(self, name: str, password: str, source: str = "") -> Principal | None:
        """Return the principal with this name and password, None if they do not belong together.

        ``source`` is the client's address: guesses from one address do not lock out users at another. A wrong password
        takes a few hundred milliseconds, as does a name that does not exist; a password that was right before takes a
        few microseconds. Raises AuthenticationBusy.
        """
        if len(password) > LONGEST_PASSWORD or len(name) > LONGEST_PASSWORD:
            self.refused()
            return None
        user = self._users.get(name)
        if user is not None and user.password is None:
            user = None  # the user has keys for SCRAM only, and must take as long as an unknown name
        expected = self._nobody if user is None or user.password is None else user.password
        try:
            key = self._key(name, password, expected)
        except UnicodeEncodeError:  # a lone surrogate, which JSON allows: no password contains one
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
        # The key contains the hash, so a password remembered before a change is not accepted after it.
        content = b"\0".join((name.encode(), expected.digest, password.encode()))
        return hmac.digest(self._secret, content, "sha256")

    # --- tokens -----------------------------------------------------------------------------------------------------

    def issue(self, principal: Principal, seconds: int, audience: str, claims: Mapping[str, Any] | None = None) -> str:
        """Return a token that proves for ``seconds``, at most ``token_seconds``, that its bearer is ``principal``.

        ``audience`` names the use of the token, for instance a front's name: :meth:`check` accepts it for nothing else.
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
        """Return the content of a token. Raises TokenExpired, or TokenError for any other reason why it is not valid.

        A user's token ends with the user or with the password for which it was issued. Tokens of the issuer in
        ``auth.oauth_keys`` are accepted too; they end at their own expiry.
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
        """Return whether tokens of an external issuer are accepted."""
        return self._oauth is not None

    def bearer(self, token: str) -> Token:
        """Return the content of an external issuer's token that a client logs in with, and count the login.

        Raises TokenExpired, TokenError.
        """
        if self._oauth is None:
            raise TokenError("tokens are not taken here")
        found = self._oauth.check(token)
        self.succeeded += 1
        return found

    # --- tickets ----------------------------------------------------------------------------------------------------

    @property
    def takes_tickets(self) -> bool:
        """Return whether tickets of a Kerberos realm are accepted."""
        return self._kerberos is not None

    def kerberos(self) -> KerberosExchange:
        """Begin a login with a ticket, where they are accepted; the caller counts its end."""
        assert self._kerberos is not None, "asked before"
        return self._kerberos.begin()

    @property
    def keys(self) -> TokenKeys:
        """Return the keys that sign tokens, as last read."""
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
