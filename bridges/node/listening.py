"""The listeners of a node by its settings: which there are, their addresses, and what each may demand of clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from anabranch_kit.net.address import Address
from bridges.node.front import Front, Listener, listener_kind
from bridges.node.settings.config import Settings
from bridges.node.settings.sections import SettingsError
from bridges.node.storage import backend

CONSOLE = "console"
CONSOLE_PORT = 8080
CLUSTER = "cluster"
"""The listener for other nodes; any port will do, as they find it in the database."""
OFF = "off"
"""Value of ``listen.<name>`` that keeps a listener closed."""


class Listening:
    """The listeners of a node with ``settings`` and the fronts ``kinds``."""

    __slots__ = ("_of_fronts", "_settings")

    def __init__(self, settings: Settings, kinds: Sequence[type[Front]]) -> None:
        self._settings = settings
        self._of_fronts = {listener.name: listener for kind in kinds for listener in kind.listeners}

    @property
    def asks_who(self) -> bool:
        """Return whether clients are authenticated or authorized at all."""
        return self._settings.auth.required or self._settings.auth.rules != "off"

    def addresses(self) -> dict[str, Address]:
        """Return the address of every listener to be opened, by name. Raises SettingsError."""
        settings = self._settings
        others = bool(settings.cluster.database) or settings.node.workers > 1
        ports = {**backend.listeners(settings), CONSOLE: CONSOLE_PORT, CLUSTER: 0}
        ports.update({name: listener.port for name, listener in self._of_fronts.items()})
        given = {name: text for name, text in settings.listen.items() if text != OFF}
        further = {name: 0 for name in given if name not in ports and self.kind(name) is not None}
        ports.update(further)
        if unknown := sorted(set(given) - set(ports)):
            raise SettingsError(
                f"there is no listener {unknown[0]!r}; there are {', '.join(sorted(ports))}, and further ones of a "
                "front's, under names like kafka-external"
            )
        # Listeners of the backend have no logins. Where clients are authenticated and these listeners demand no
        # tickets, they open only if the settings give them an address.
        inner = backend.listeners(settings)
        if settings.sbp.tickets and (unable := sorted((set(inner) & set(given)) - set(backend.LISTENERS))):
            raise SettingsError(
                f"sbp.tickets: listener {unable[0]} cannot demand tickets; close it with listen.{unable[0]} = {OFF}"
            )
        addresses: dict[str, Address] = {}
        for name, port in ports.items():
            if settings.listen.get(name) == OFF or (
                name not in given and name in inner and self.asks_who and not settings.sbp.tickets
            ):
                continue
            if name == CLUSTER and not others:
                continue
            try:
                text = given.get(name)
                host = settings.default_host
                addresses[name] = Address(host, port) if text is None else Address.parse(text, host)
            except ValueError as error:
                raise SettingsError(f"listen.{name}: {error}") from None
        for name, text in settings.advertise.items():
            try:
                Address.parse(text)
            except ValueError as error:
                raise SettingsError(f"advertise.{name}: {error}") from None
        if others and backend.RANGE_SERVER in inner and backend.RANGE_SERVER not in addresses:
            raise SettingsError(self._unreadable())
        return addresses

    def _unreadable(self) -> str:
        who = "nodes" if self._settings.cluster.database else "workers"
        return (
            f"{who} read each other's partitions at listener {backend.RANGE_SERVER}, which is closed (where clients "
            "must say who they are, it opens only when it is asked for, or with sbp.tickets; without them it should "
            f"have TLS with client_ca): give listen.{backend.RANGE_SERVER} an address"
        )

    def check_authentication(self, listen: Mapping[str, Address], required_at: Callable[[str], bool]) -> None:
        """Check that clients can log in wherever they must. Raises SettingsError."""
        for name in self._settings.auth_required:
            if name != CONSOLE and self.kind(name) is None:
                raise SettingsError(f"auth_required.{name}: there is no such listener that asks clients who they are")
        for name in listen:
            listener = self.listener(name)
            if listener is not None and not listener.authentication and required_at(name):
                raise SettingsError(
                    f"auth.required is set, but clients cannot log in at listener {name}: close it with "
                    f"listen.{name} = {OFF}, or set auth_required.{name} = false"
                )

    def kind(self, name: str) -> str | None:
        """Return the kind of front listener to which a listener belongs, None for others."""
        return listener_kind(name, self._of_fronts)

    def listener(self, name: str) -> Listener | None:
        """Return the front's declaration of a listener, None for others."""
        kind = self.kind(name)
        return None if kind is None else self._of_fronts[kind]

    def able_of_tls(self) -> list[str]:
        """Return the fronts' listeners, further ones included, that may have TLS."""
        names = {*self._settings.listen, *self._of_fronts}
        return [name for name in names if (of := self.listener(name)) is not None and of.tls]

    def advertised(self, addresses: Mapping[str, Address]) -> dict[str, Address]:
        """Return the address that clients are told for each of ``addresses``."""
        told = self._settings.advertise
        return {name: Address.parse(told[name]) if name in told else address for name, address in addresses.items()}
