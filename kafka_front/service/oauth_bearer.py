"""Messages of OAUTHBEARER (RFC 7628, KIP-255): the token that a client shows, and how it is told that it is not good.

A client is told of a refusal in JSON, says in one byte that it has understood, and only then the login has failed.
"""

from __future__ import annotations

import re

MECHANISM = "OAUTHBEARER"

REFUSED = b'{"status":"invalid_token"}'
UNDERSTOOD = b"\x01"

# The header of GS2 with whom the client acts for, then pairs of keys and values, each ended by one byte.
_FIRST = re.compile(rb"n,(?:a=([^,]*))?,\x01((?:[A-Za-z]+=[^\x01]*\x01)*)\x01")


class BadFirstMessage(Exception):
    """A client's first message is not one of OAUTHBEARER's."""


def token_of(message: bytes) -> tuple[str, str]:
    """The token in a client's first message, and the name that the client says it acts for, empty without. Raises
    BadFirstMessage."""
    found = _FIRST.fullmatch(message)
    if found is None:
        raise BadFirstMessage
    for pair in found[2].split(UNDERSTOOD):
        key, _, value = pair.partition(b"=")
        scheme, _, token = value.partition(b" ")
        if key == b"auth" and scheme.lower() == b"bearer":
            try:
                return token.strip().decode("ascii"), _name(found[1] or b"")
            except UnicodeDecodeError:
                break
    raise BadFirstMessage


def _name(written: bytes) -> str:
    # In SCRAM's manner "," and "=" of a name are written with three bytes (RFC 5801).
    return written.decode().replace("=2C", ",").replace("=3D", "=")
