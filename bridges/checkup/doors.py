"""Checks of listeners: that their addresses are free, which clients get in, and whether data travels unencrypted."""

from __future__ import annotations

import errno
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from pathlib import Path

from anabranch_kit.net.address import Address
from bridges.auth import users
from bridges.checkup import certificates
from bridges.node.finding import Finding, fine, note, warning, wrong
from bridges.node.listening import OFF, Listening
from bridges.node.settings import tls as tls_settings
from bridges.node.settings.config import Settings
from bridges.node.settings.sections import SettingsError
from bridges.node.workers import settings as workers

_PATIENCE_S = 2.0


def check(settings: Settings, *, running: bool, now_s: float) -> Iterator[Finding]:
    """Check all listeners.

    ``running``: whether a node serves the data directory of ``settings`` now, so that the addresses in use are its own.
    """
    listening = Listening(settings, settings.fronts)
    try:
        addresses = listening.addresses()
        every = dict(workers.by_name(_of_workers(settings)))
    except SettingsError as error:
        yield wrong("listeners", str(error), "see 'anabranch config'")
        return
    opened = {name: Address.parse(text) for name, text in every.items()}
    yield from check_apart(opened)
    if not running:
        yield from check_free(opened, settings.data_dir)
    yield from check_told(settings, addresses)
    yield from check_open(settings, listening, addresses)
    told = listening.advertised({})
    for name, files in tls_settings.tls_files(settings.tls).items():
        if name in addresses:
            advertised = Address.parse(settings.advertise[name]) if name in settings.advertise else told.get(name)
            yield from certificates.check(name, files, advertised, now_s)


def _of_workers(settings: Settings) -> Iterator[Mapping[str, str]]:
    """Yield the listen addresses of each worker, by listener; a single node is one worker. Raises SettingsError."""
    if settings.node.workers > 1:
        workers.check(settings, settings.fronts)
    for number in range(settings.node.workers):
        listen = workers.settings_of(settings, settings.fronts, number).listen
        yield {name: text for name, text in listen.items() if text != OFF}


def check_apart(addresses: Mapping[str, Address]) -> Iterator[Finding]:
    """Check that no two listeners use the same port."""
    by_port: dict[int, list[str]] = {}
    for name, address in addresses.items():
        if address.port:
            by_port.setdefault(address.port, []).append(name)
    for port, names in by_port.items():
        hosts = [addresses[name].host for name in names]
        if len(set(hosts)) < len(hosts) or (len(hosts) > 1 and any(_is_every(host) for host in hosts)):
            remedy = f"choose another one: listen.{names[-1].partition('/')[0]}=HOST:PORT"
            yield wrong("listeners", f"{' and '.join(names)} would both be at port {port}", remedy)


def check_told(settings: Settings, addresses: Mapping[str, Address]) -> Iterator[Finding]:
    """Check that clients can reach the advertised addresses."""
    for name, text in settings.advertise.items():
        if name not in addresses:
            continue
        told = Address.parse(text)
        remedy = f"advertise.{name}=HOST:PORT, as clients reach it"
        if _is_every(told.host):
            yield wrong(f"advertise.{name}", f"clients are told {told}, which leads each of them to itself", remedy)
        elif _is_loopback(told.host) and not _is_loopback(addresses[name].host):
            yield warning(
                f"advertise.{name}",
                f"clients on other machines are told {told}, which leads them to themselves",
                remedy,
            )
        elif not _is_known(told.host):
            yield warning(f"advertise.{name}", f"clients are told {told}, a name that this machine cannot find", remedy)


def check_free(addresses: Mapping[str, Address], data: Path) -> Iterator[Finding]:
    """Check that each address can be listened on, and report a node that serves with another directory than
    ``data``.
    """
    taken = False
    other = "console" in addresses and _serves(addresses["console"])
    if other:
        yield warning(
            "data directory",
            f"a node serves at {addresses['console']}, and not with {data}: what is taken may be its own",
            "give 'doctor' what that node was started with (--data, --config, --listen, --set)",
        )
    for name, address in addresses.items():
        reason = _refused(address)
        if reason is not None and not (other and reason == os.strerror(errno.EADDRINUSE)):
            taken = True
            remedy = f"stop who has it, or choose another one: listen.{name.partition('/')[0]}=HOST:PORT"
            yield wrong(f"listen.{name}", f"{address} cannot be listened on: {reason}", remedy)
    if not taken and not other:
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


def _serves(address: Address) -> bool:
    """Return whether a node's console answers at the address."""
    for connect in (HTTPConnection, _unverified):
        connection = connect(address.host, address.port, timeout=_PATIENCE_S)
        with closing(connection), suppress(OSError, HTTPException, ValueError):
            connection.request("GET", "/healthz")
            return "healthy" in json.loads(connection.getresponse().read(10_000))
    return False


def _unverified(host: str, port: int, timeout: float) -> HTTPSConnection:
    return HTTPSConnection(host, port, timeout=timeout, context=ssl._create_unverified_context())


def check_open(settings: Settings, listening: Listening, addresses: Mapping[str, Address]) -> Iterator[Finding]:
    """Check who can reach the listeners from the network, and whether passwords and data travel unencrypted."""
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
    if settings.auth.rules == "deny" and not settings.super_users:
        yield warning(
            "access",
            "auth.rules=deny forbids what no rule allows, and nobody may make rules: there is no super user",
            "auth.super_users=User:NAME",
        )
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


def _is_every(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return not host


def _is_known(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
