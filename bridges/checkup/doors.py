"""The listeners: whether their addresses are free, whom they let in, what goes over the network in the clear."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from ipaddress import ip_address

from bridges.auth import users
from bridges.checkup import certificates
from bridges.checkup.finding import Finding, fine, note, warning, wrong
from bridges.net.address import Address
from bridges.node import tls_settings, workers
from bridges.node.config import Settings
from bridges.node.listening import OFF, Listening
from bridges.node.sections import SettingsError


def check(settings: Settings, *, running: bool, now_s: float) -> Iterator[Finding]:
    """``running``: whether a node serves these settings' data directory now, so that its addresses are its own."""
    listening = Listening(settings, settings.fronts)
    try:
        addresses = listening.addresses()
        every = dict(workers.by_name(_of_workers(settings)))
    except SettingsError as error:
        yield wrong("listeners", str(error), "see 'anabranch config'")
        return
    if not running:
        yield from check_free({name: Address.parse(text) for name, text in every.items()})
    yield from check_open(settings, listening, addresses)
    told = listening.advertised({})
    for name, files in tls_settings.tls_files(settings.tls).items():
        if name in addresses:
            advertised = Address.parse(settings.advertise[name]) if name in settings.advertise else told.get(name)
            yield from certificates.check(name, files, advertised, now_s)


def _of_workers(settings: Settings) -> Iterator[Mapping[str, str]]:
    """Where each worker would listen; a node by itself is one. Raises SettingsError."""
    if settings.node.workers > 1:
        workers.check(settings, settings.fronts)
    for number in range(settings.node.workers):
        listen = workers.settings_of(settings, settings.fronts, number).listen
        yield {name: text for name, text in listen.items() if text != OFF}


def check_free(addresses: Mapping[str, Address]) -> Iterator[Finding]:
    """Whether each address can be listened on."""
    taken = False
    for name, address in addresses.items():
        reason = _refused(address)
        if reason is not None:
            taken = True
            remedy = f"stop who has it, or choose another one: listen.{name.partition('/')[0]}=HOST:PORT"
            yield wrong(f"listen.{name}", f"{address} cannot be listened on: {reason}", remedy)
    if not taken:
        yield fine("listeners", f"all {len(addresses)} addresses are free")


def _refused(address: Address) -> str | None:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return error.strerror or str(error)
    family, kind, protocol, _, where = found[0]
    with closing(socket.socket(family, kind, protocol)) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(where)
            one.listen(1)
        except OSError as error:
            return error.strerror or str(error)
    return None


def check_open(settings: Settings, listening: Listening, addresses: Mapping[str, Address]) -> Iterator[Finding]:
    """Whether others on the network get in, and what they can read there."""
    outside = {name: one for name, one in addresses.items() if not _is_loopback(one.host)}
    if outside and not listening.asks_who:
        yield warning(
            "access",
            f"whoever reaches {', '.join(sorted(outside))} may do everything",
            "auth.required=true and users (anabranch user add), or listen on 127.0.0.1 only",
        )
    elif not listening.asks_who:
        yield note("access", "everybody on this machine may do everything: nobody is asked who they are")
    else:
        yield from _check_users(settings)
    clear = sorted(name for name in outside if f"{name}.cert" not in settings.tls)
    if clear and listening.asks_who:
        remedy = "tls.LISTENER.cert and tls.LISTENER.key, or a network of its own"
        yield warning("access", f"passwords and data go over the network in the clear at {', '.join(clear)}", remedy)


def _check_users(settings: Settings) -> Iterator[Finding]:
    path = settings.auth_options.users_file
    try:
        known = users.load(path)
    except users.UsersError as error:
        yield wrong("users", str(error), "restore it, or make users anew with 'anabranch user add'")
        return
    if known:
        yield fine("users", f"{path} has {len(known)}")
    else:
        yield warning(
            "users", f"{path} has none: only certificates and tokens let anybody in", "anabranch user add NAME"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
