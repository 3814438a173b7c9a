"""Messages of OAUTHBEARER (RFC 7628, KIP-255): a client's token, and the answer to an invalid one.

A refusal is sent as JSON. The client acknowledges it with one byte, and only then the login has failed.
"""

from __future__ import annotations

import re

MECHANISM = "OAUTHBEARER"

REFUSED = b'{"status":"invalid_token"}'
UNDERSTOOD = b"\x01"

# The GS2 header with the authorization identity, then pairs of keys and values, each ended by the byte 0x01.
_FIRST = re.compile(rb"n,(?:a=([^,]*))?,\x01((?:[A-Za-z]+=[^\x01]*\x01)*)\x01")


class BadFirstMessage(Exception):
    """A client's first message is not one of OAUTHBEARER's."""


def token_of(message: bytes) -> tuple[str, str]:
    """Return the token in a client's first message, and the name that the client wants to act for (empty without one).
    Raises BadFirstMessage."""
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
    # As in SCRAM, "," and "=" of a name are escaped as three bytes (RFC 5801).
    return written.decode().replace("=2C", ",").replace("=3D", "=")
