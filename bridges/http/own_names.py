"""The host names under which an HTTP listener may be asked, as a defence against DNS rebinding.

A page of any site can make its own name resolve to an address inside a private network (DNS rebinding). The browser
then takes our listener for that site: from inside the network, the page reads every answer and changes what it likes.
The name in ``Host`` (RFC 9110, section 7.2) tells such a request from a legitimate one: a page cannot choose it freely,
because it is the name under which the page was loaded. So a request is accepted if it names

* an address: it involves no lookup, so the page really comes from there;
* ``localhost``, which resolves nowhere else, or the machine's own name;
* the name at which the listener was opened, or which it advertises;
* a name that ``node.http_names`` lists, such as that of a proxy in front.

A client that sends no ``Host`` is no browser, and is accepted.
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
    """The names of one listener, besides all addresses. ``further`` are names that only the operator knows."""

    __slots__ = ("_further", "_names")

    def __init__(self, names: Iterable[str] = (), further: Iterable[str] = ()) -> None:
        self._further = frozenset(map(_plain, further)) - {""}
        self._names = self._further | {"localhost", _plain(socket.gethostname()), *map(_plain, names)}

    def refusal(self, request: web.Request) -> str | None:
        """Return why the listener must not answer a request, None if it may."""
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
            # The second condition: a proxy that the operator has listed may put its own name into Host.
            if site.netloc == request.host or (site.hostname or "") in self._further:
                return None
        except ValueError:
            pass
        return "pages of other sites may not change anything here"

    def _is_own(self, host: str) -> bool:
        name = _name(host)
        return name in self._names or _is_address(name)


def _name(host: str) -> str:
    """Return the name in a ``Host`` header without its port."""
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
