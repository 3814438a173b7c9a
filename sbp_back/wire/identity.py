"""Which placement driver, or which range server, one talks to.

Stream ids are small numbers, so those of two placement drivers overlap: whoever keeps data under such numbers has to
know whose they are. A placement driver of ours gets an identity with its state and tells it as its name in
DESCRIBE_PLACEMENT_DRIVER, where the protocol leaves the name free (docs/protocols/sbp.md, "Tables"). Names of
other placement drivers tell nothing. A range server of ours tells its number, and whose it is, in the same way: what
is found at an address may be another one by now, and a range would be made there anew that it has never heard of.
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
"""How to ask a server. Raises ``ConnectionLost``."""

_NAME = re.compile(r"anabranch-([A-Za-z0-9_-]{22})")
_SERVER_NAME = re.compile(r"anabranch:range-server:([0-9]{1,10}):([A-Za-z0-9_-]{22})?")
_NAME_WITHOUT_IDENTITY = "anabranch"  # of releases before there were identities


class WhoAnswers(Struct, frozen=True):
    """``ours``: it is one of Anabranch's. ``identity`` is empty when it tells none."""

    ours: bool
    identity: str


def new_identity() -> str:
    """22 characters of URL-safe base64, as Kafka's cluster ids; not starting with '-', which command lines take for an
    option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def pd_name(identity: str) -> str:
    """What a placement driver of that identity is called."""
    return f"anabranch-{identity}"


def range_server_name(server_id: int, identity: str) -> str:
    """What a range server is called that belongs to the placement driver of that identity (empty: it was never told
    one)."""
    return f"anabranch:range-server:{server_id}:{identity}"


def identity_of(nodes: Iterable[PdNode]) -> str:
    """The identity that the nodes of a placement driver tell; empty when they tell none."""
    for node in nodes:
        match = _NAME.fullmatch(node.name)
        if match is not None:
            return match[1]
    return ""


async def ask_who(call: Call) -> WhoAnswers:
    """What the placement driver that ``call`` asks tells of itself. Raises ``SbpError``."""
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
    """Whether what is found at an address is the range server that it is taken for; see ``carrier.Introduce``.

    ``strangers``: whether one may be used that tells nothing; otherwise it must be one of ours, of whichever release.
    ``identity`` gives that of the placement driver, empty where it is not known.
    """

    def __init__(self, *, strangers: bool, identity: Callable[[], str] = str) -> None:
        self._strangers = strangers
        self._identity = identity

    async def meet(self, server_id: int, call: Call) -> str | None:
        """Why the server that ``call`` asks is not number ``server_id`` (-1: any), or is of no use. Raises
        ``SbpError``."""
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
        # Elastic-stream's do not list their ranges; older ones of ours do.
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
    """The identity of the placement driver that ``call`` asks; empty when it tells none. Raises ``SbpError``."""
    return (await ask_who(call)).identity
