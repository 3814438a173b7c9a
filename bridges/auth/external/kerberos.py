"""Logins with Kerberos: the server's side of SASL's mechanism GSSAPI (RFC 4752), and the local names of principals.

A login takes three messages of the client: its ticket, an empty one that asks for the security layers, and its choice.
The only layer offered is none, as by Kafka: TLS protects connections. The user is always the ticket's principal, by its
local name. The client also names the identity that it wants to act as. Java sends its own principal there, aiokafka and
kafka-python send the service's name, and librdkafka sends nothing; any other name is refused.

The GSSAPI library reads the keytab and writes its cache of replayed tickets, so its calls run in threads.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self, TypeVar

from msgspec import Struct

from bridges.auth import Principal, principal_named
from bridges.auth.comparisons import AuthenticationBusy
from bridges.auth.tokens import KeysError

if TYPE_CHECKING:
    import gssapi

MECHANISM = "GSSAPI"

_THREADS = 2
_NO_LAYER = 1
_CHOICE_BYTES = 4
"""A byte with the security layers, and three with the longest message below one."""

_KERBEROS_ERRORS = -1765328384
"""Where libkrb5 puts the error codes of RFC 4120 (section 7.5.9)."""
_REPLAYED = 34
_REASONS = {
    32: "the ticket has expired: get a new one, as with kinit",
    33: "the ticket is not valid yet: compare the clocks of the client and of this node",
    37: "the clocks of the client and of this node differ too much",
}
"""By error code of RFC 4120; the library words all others."""

_PRINCIPAL = re.compile(r"([^/@]+)(?:/([^/@]*))?@([^/@]+)")
_RULE = re.compile(r"RULE:\[(\d+):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?/?([LU])?")
_NOT_SIMPLE = re.compile(r"[/@\\]")

T = TypeVar("T")


class KerberosError(Exception):
    """A login was refused; the message is for the client's user."""


class KerberosOptions(Struct, frozen=True):
    """Settings of Kerberos. ``rules``: as :class:`LocalNames` reads them."""

    keytab: str
    rules: str = "DEFAULT"


class _Rule(Struct, frozen=True):
    """One rule for principals of ``parts`` parts: ``form`` builds a name from realm ($0) and parts, which ``match``
    selects and ``find`` edits. ``case``: L or U for a name in lower or upper case."""

    parts: int
    form: str
    match: re.Pattern[str] | None
    find: re.Pattern[str] | None
    put: str
    count: int
    case: str

    def apply(self, parts: Sequence[str]) -> str | None:
        """Return the local name; None if the rule does not apply. ``parts`` begins with the realm."""
        if len(parts) - 1 != self.parts:
            return None
        name = re.sub(r"\$(\d)", lambda found: parts[int(found[1])], self.form)
        if self.match is not None and not self.match.fullmatch(name):
            return None
        if self.find is not None:
            name = self.find.sub(self.put, name, self.count)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


class LocalNames:
    """Rules that give principals their local names, as in Kafka's ``sasl.kerberos.principal.to.local.rules``.

    The first rule that applies decides. ``DEFAULT`` takes the first part of principals of the default realm.
    """

    def __init__(self, rules: Sequence[_Rule | None]) -> None:
        self._rules = rules

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read rules, separated by commas. Raises ValueError."""
        return cls([_parse(rule.strip()) for rule in text.split(",")])

    def find(self, principal: str, default_realm: str) -> str:
        """Return a principal's local name. Raises KerberosError if no rule gives one."""
        found = _PRINCIPAL.fullmatch(principal)
        if found is not None:
            parts = [found[3], found[1], *([] if found[2] is None else [found[2]])]
            for rule in self._rules:
                name = parts[1] if rule is None and parts[0] == default_realm else rule and rule.apply(parts)
                if name and not _NOT_SIMPLE.search(name):
                    return name
                if name:
                    break
        raise KerberosError(f"no rule of auth.kerberos_rules gives {principal} a local name")


def _parse(text: str) -> _Rule | None:
    """Read a rule; None stands for DEFAULT. Raises ValueError."""
    if text == "DEFAULT":
        return None
    found = _RULE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a rule: DEFAULT, or RULE:[PARTS:FORM](MATCH)s/FIND/PUT/g")
    parts, form, match, find, put, every, case = found.groups()
    if any(int(number) > int(parts) for number in re.findall(r"\$(\d)", form)):
        raise ValueError(f"{text!r} names a part that a principal of {parts} parts does not have")
    try:
        # Groups are $1 in Java's replacements.
        put = re.sub(r"\$(\d)", r"\\g<\1>", (put or "").replace("\\", r"\\"))
        found_by = None if find is None else re.compile(find)
        matches = None if match is None else re.compile(match)
        if found_by is not None and any(int(n) > found_by.groups for n in re.findall(r"\\g<(\d)>", put)):
            raise ValueError(f"{text!r} puts a group that it does not find")
    except re.error as error:
        raise ValueError(f"{text!r} has a wrong pattern: {error}") from None
    return _Rule(int(parts), form, matches, found_by, put, 0 if every else 1, case or "")


class Kerberos:
    """The node as a service of a Kerberos realm. Belongs to the event loop; call :meth:`load` first."""

    def __init__(self, options: KerberosOptions) -> None:
        self._options = options
        self._names = LocalNames.parse(options.rules)
        self._realm = ""
        self._credentials: gssapi.Credentials | None = None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="kerberos")

    async def load(self) -> None:
        """Check the keytab. Raises KeysError."""
        await self.run(self._load)

    def _load(self) -> None:
        try:
            import gssapi
        except ImportError:
            raise KeysError(
                "auth.kerberos_keytab needs gssapi and MIT Kerberos: pip install 'anabranch[kerberos]'"
            ) from None
        options, mechanism = self._options, gssapi.MechType.kerberos
        try:
            # Tickets for any principal of the keytab: clients may use several names of the node. The library reads the
            # keytab again for each login, so it may get new keys meanwhile.
            store = {"keytab": options.keytab}
            self._credentials = gssapi.Credentials(mechs=[mechanism], usage="accept", store=store)
            self._realm = str(gssapi.Name("x", gssapi.NameType.user).canonicalize(mechanism)).rpartition("@")[2]
        except gssapi.exceptions.GSSError as error:
            raise KeysError(f"auth.kerberos_keytab: {options.keytab}: {_words(error)}") from None

    def begin(self) -> KerberosExchange:
        """Begin a login."""
        return KerberosExchange(self, self._credentials)

    def local_name(self, principal: str) -> str:
        """Return a principal's local name. Raises KerberosError."""
        return self._names.find(principal, self._realm)

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of a call of the library, made in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Begin no further calls of the library."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class KerberosExchange:
    """The server's side of one login: :meth:`step` until there is a ``principal``."""

    __slots__ = ("_context", "_kerberos", "_offered", "principal", "seconds")

    def __init__(self, kerberos: Kerberos, credentials: gssapi.Credentials | None) -> None:
        import gssapi

        self._kerberos = kerberos
        self._context = gssapi.SecurityContext(creds=credentials, usage="accept")
        # Otherwise the library gives an error for the client in the place of an answer, and raises it at a later call.
        self._context.__DEFER_STEP_ERRORS__ = False
        self._offered = False
        self.principal: Principal | None = None
        self.seconds = 0.0
        """How long the ticket is valid, when there is a principal."""

    async def step(self, message: bytes) -> bytes:
        """Return the answer to the client's next message. Raises KerberosError, AuthenticationBusy."""
        return await self._kerberos.run(lambda: self._step(message))

    def _step(self, message: bytes) -> bytes:
        import gssapi

        try:
            if not self._context.complete:
                answer = self._context.step(message)
                if answer or not self._context.complete:
                    return bytes(answer or b"")
                # Without mutual authentication (Java) there is nothing to answer: the layers are offered at once.
            elif message and not self._offered:
                raise KerberosError("an empty message was expected after the ticket (RFC 4752)")
            if not self._offered:
                self._offered = True
                return bytes(self._context.wrap(bytes((_NO_LAYER, 0, 0, 0)), False).message)
            self._finish(bytes(self._context.unwrap(message).message))
        except gssapi.exceptions.GSSError as error:
            code = _code(error)
            if code == _REPLAYED:
                # As from a Kafka broker: two tickets of one moment look like this, and clients make new ones.
                raise AuthenticationBusy("the ticket looks like one that was shown before") from None
            raise KerberosError(_REASONS.get(code) or f"Kerberos says: {_words(error)}") from None
        return b""

    def _finish(self, chosen: bytes) -> None:
        if len(chosen) < _CHOICE_BYTES or chosen[0] != _NO_LAYER:
            raise KerberosError("no security layer of SASL is offered; use TLS (security.protocol=SASL_SSL)")
        context = self._context
        # Whatever is not UTF-8 matches no rule.
        client, service = (
            bytes(name).decode(errors="replace") for name in (context.initiator_name, context.target_name)
        )
        name, acting_for = self._kerberos.local_name(client), chosen[_CHOICE_BYTES:].decode(errors="replace")
        principal = principal_named(name)
        if principal is None:
            raise KerberosError(f"{client} has a local name that no user may have")
        # The service's name as a host-based one, which aiokafka and kafka-python send: SERVICE@HOST.
        host_based = service.partition("@")[0].replace("/", "@", 1)
        if acting_for not in ("", client, name, service, host_based):
            raise KerberosError("nobody may act for somebody else")
        self.seconds = float(context.lifetime)
        self.principal = principal


def _code(error: gssapi.exceptions.GSSError) -> int:
    return int(error.min_code - _KERBEROS_ERRORS) & 0xFFFFFFFF


def _words(error: gssapi.exceptions.GSSError) -> str:
    told = error.get_all_statuses(error.min_code, False) if error.min_code else []
    return "; ".join(told or error.get_all_statuses(error.maj_code, True))
