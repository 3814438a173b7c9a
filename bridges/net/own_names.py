"""By which names browsers may ask an HTTP listener.

A page of any site can have its own name lead to an address inside somebody's network (DNS rebinding). The browser then
takes our listener for that site: the page reads every answer, and changes what it likes, from within. What tells such a
request from one that is meant is the name in ``Host`` (RFC 9110, section 7.2), which a page cannot choose freely: it is
the one that the page was loaded by. So a request is taken if it names

* an address: no page can have been loaded by one that is not really its site's, since nothing is looked up;
* ``localhost``, which resolves nowhere else, or the machine's own name;
* the name the listener was opened at, or is advertised by;
* a name that ``node.http_names`` lists, as that of a proxy in front.

Whoever sends no ``Host`` at all is no browser.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from aiohttp import web

_READS = frozenset({"GET", "HEAD"})


class OwnNames:
    """The names of one listener, besides all addresses; ``further`` are those that only an operator can know of."""

    __slots__ = ("_further", "_names")

    def __init__(self, names: Iterable[str] = (), further: Iterable[str] = ()) -> None:
        self._further = frozenset(map(_plain, further)) - {""}
        self._names = self._further | {"localhost", _plain(socket.gethostname()), *map(_plain, names)}

    def refusal(self, request: web.Request) -> str | None:
        """Why a request is not for us to answer; None if it is."""
        given = request.headers.getall("Host", [])
        if len(given) > 1:
            return "a request has one Host"
        if given and not self._is_own(given[0]):
            return f"this is not {given[0]!r}: node.http_names can list further names of this listener"
        origin = request.headers.get("Origin")
        if request.method in _READS or origin is None:
            return None
        try:
            site = urlsplit(origin)
            # The second: a proxy that is told of may put its own name into Host.
            if site.netloc == request.host or (site.hostname or "") in self._further:
                return None
        except ValueError:
            pass
        return "pages of other sites may not change anything here"

    def _is_own(self, host: str) -> bool:
        name = _name(host)
        return name in self._names or _is_address(name)


def _name(host: str) -> str:
    """The name in a ``Host``, which may have a port behind it."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return _plain(name if colon and port.isascii() and port.isdigit() else host)


def _plain(name: str) -> str:
    return name.lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
