"""A request for one document over HTTP, whose answer may be slow, long, or anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

MOST_BYTES = 1024**2
"""Longest answer that is read."""


async def get(
    url: str, patience_s: float, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    """Return status and body of the answer to a GET; redirects are not followed.

    Raises OSError if there is none within ``patience_s``, and ValueError if it is none, or longer than
    :data:`MOST_BYTES`.
    """
    import aiohttp  # most nodes ask nobody

    try:
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=patience_s), trust_env=True, auto_decompress=False
            ) as session,
            session.get(
                url,
                headers={"Accept-Encoding": "identity", **(headers or {})},
                ssl=True if tls is None else tls,
                allow_redirects=False,
            ) as answer,
        ):
            body = bytearray()
            async for piece in answer.content.iter_chunked(65536):
                body += piece
                if len(body) > MOST_BYTES:
                    raise ValueError(f"the answer has more than {MOST_BYTES} bytes")
            return answer.status, bytes(body)
    except TimeoutError:
        raise OSError(f"no answer within {patience_s:g} s") from None
    except aiohttp.ClientError as error:
        raise ValueError(str(error) or repr(error)) from None
