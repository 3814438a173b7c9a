"""Identity of the placement driver, or the range server, at the other end of a connection.

Stream ids are small numbers, so those of two placement drivers overlap: a store of data under such numbers has to know
whose they are. A placement driver of ours gets an identity with its state and reports it as its name in
DESCRIBE_PLACEMENT_DRIVER, where the protocol leaves the name free (docs/protocols/sbp.md, "Tables"). Names of other
placement drivers carry no identity. A range server of ours reports its number and its placement driver in the same way:
another server may answer at its address by now, and would create a range anew that it has never heard of.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable

from msgspec import Struct

from sbp_back.errors import ErrorCode, SbpError
from sbp_back.wire.model import DescribePdRequest, DescribePdResponse, ListRangeRequest, PdNode, Request, Response

Call = Callable[[Request], Awaitable[Response]]
"""Sends a request to a server. Raises ``ConnectionLost``."""

_NAME = re.compile(r"anabranch-([A-Za-z0-9_-]{22})")
_SERVER_NAME = re.compile(r"anabranch:range-server:([0-9]{1,10}):([A-Za-z0-9_-]{22})?")
_NAME_WITHOUT_IDENTITY = "anabranch"  # of releases before identities


class WhoAnswers(Struct, frozen=True):
    """Self-description of a placement driver. ``ours``: it is one of Anabranch's. ``identity``: empty when it reports
    none.
    """

    ours: bool
    identity: str


def new_identity() -> str:
    """Make 22 characters of URL-safe base64, like Kafka's cluster ids; not starting with '-', which command lines take
    for an option.
    """
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def pd_name(identity: str) -> str:
    """Return the name that a placement driver of that identity reports."""
    return f"anabranch-{identity}"


def range_server_name(server_id: int, identity: str) -> str:
    """Return the name that a range server reports; ``identity``: of its placement driver, empty if unknown to it."""
    return f"anabranch:range-server:{server_id}:{identity}"


def identity_of(nodes: Iterable[PdNode]) -> str:
    """Return the identity that the nodes of a placement driver report; empty when they report none."""
    for node in nodes:
        match = _NAME.fullmatch(node.name)
        if match is not None:
            return match[1]
    return ""


async def ask_who(call: Call) -> WhoAnswers:
    """Ask a placement driver through ``call`` who it is. Raises ``SbpError``."""
    response = await call(DescribePdRequest())
    if not response.status.ok:
        # Requests and answers of this kind look the same in both dialects, but for the codes.
        strange = response.status.code == ErrorCode.UNSPECIFIED
        hint = "it answers with code 0, as a listener of sbp-v0.1 does that is taken for one of sbp-0.2"
        raise SbpError(response.status.code, hint if strange else response.status.message)
    if not isinstance(response, DescribePdResponse):
        raise SbpError(ErrorCode.DECODE, f"{type(response).__name__} is no answer to DescribePdRequest")
    if any(_SERVER_NAME.fullmatch(node.name) for node in response.nodes):
        raise SbpError(ErrorCode.UNSUPPORTED_OPERATION, "this is a range server, not a placement driver")
    identity = identity_of(response.nodes)
    named = any(node.name == _NAME_WITHOUT_IDENTITY for node in response.nodes)
    return WhoAnswers(bool(identity) or named, identity)


class RangeServerCheck:
    """Check that the server at an address is the expected range server; see ``carrier.Introduce``.

    ``strangers``: whether a server without such a name may be used; otherwise it must be one of ours, of any release.
    ``identity`` gives the placement driver's, empty where it is not known.
    """

    def __init__(self, *, strangers: bool, identity: Callable[[], str] = str) -> None:
        self._strangers = strangers
        self._identity = identity

    async def meet(self, server_id: int, call: Call) -> str | None:
        """Return why the server that ``call`` asks is not number ``server_id`` (-1: any), or cannot be used; None if it
        can. Raises ``SbpError``.
        """
        response = await call(DescribePdRequest())
        if response.status.code == ErrorCode.UNAUTHORIZED:
            return response.status.message
        nodes = response.nodes if isinstance(response, DescribePdResponse) and response.status.ok else []
        for node in nodes:
            match = _SERVER_NAME.fullmatch(node.name)
            if match is not None:
                return self._compare(server_id, int(match[1]), match[2] or "")
        if self._strangers:
            return None
        # Range servers of elastic-stream do not list their ranges; older ones of ours do.
        listed = await call(ListRangeRequest())
        if listed.status.code != ErrorCode.UNSUPPORTED_OPERATION:
            return None
        return (
            "this range server is none of Anabranch's, and believing what others answer would lose acknowledged data: "
            "set sbp.flavor=elastic-stream if it is one of elastic-stream's"
        )

    def _compare(self, wanted: int, found: int, home: str) -> str | None:
        expected = self._identity()
        if home and expected and home != expected:
            return f"this range server belongs to placement driver {home}, not to {expected}"
        if found != wanted >= 0:
            return f"this is range server {found}, not {wanted}"
        return None


async def ask_identity(call: Call) -> str:
    """Ask a placement driver through ``call`` for its identity; empty when it reports none. Raises ``SbpError``."""
    return (await ask_who(call)).identity
