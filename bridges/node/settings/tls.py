"""The settings ``tls.LISTENER.WHAT`` and ``sbp.tls``: the files of TLS, and reloading them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import structlog

from anabranch_kit.net.tls import ListenerTls, PeerFiles, PeerTls, TlsError, TlsFiles
from bridges.node.settings.sections import SbpSettings, SettingsError

WHAT = ("cert", "key", "client_ca", "client")
"""Settings of a listener's TLS."""
_CLIENT = ("required", "optional")

_log = structlog.get_logger("anabranch.tls")


def split(name: str) -> tuple[str, str]:
    """Split ``LISTENER.WHAT`` into the listener and the setting."""
    listener, _, what = name.rpartition(".")
    return listener, what


def check(values: Mapping[str, str]) -> None:
    """Check that values by ``LISTENER.WHAT`` are consistent. Raises ValueError."""
    for name, value in values.items():
        listener, what = split(name)
        if not listener or what not in WHAT:
            raise ValueError(f"tls.{name} is none of tls.LISTENER.{{{', '.join(WHAT)}}}")
        if what == "client" and value not in _CLIENT:
            raise ValueError(f"tls.{name} is {' or '.join(_CLIENT)}, not {value!r}")
    for listener in sorted({split(name)[0] for name in values}):
        if missing := [what for what in ("cert", "key") if not values.get(f"{listener}.{what}")]:
            raise ValueError(f"tls.{listener} needs {' and '.join(missing)}")
        if f"{listener}.client" in values and not values.get(f"{listener}.client_ca"):
            raise ValueError(f"tls.{listener}.client needs client_ca, whose certificates clients are to have")


def tls_files(values: Mapping[str, str]) -> dict[str, TlsFiles]:
    """Return the files by listener, from values that have passed :func:`check`."""
    files: dict[str, TlsFiles] = {}
    for listener in sorted({split(name)[0] for name in values}):
        ca = values.get(f"{listener}.client_ca")
        files[listener] = TlsFiles(
            Path(values[f"{listener}.cert"]),
            Path(values[f"{listener}.key"]),
            Path(ca) if ca else None,
            values.get(f"{listener}.client", _CLIENT[0]) == _CLIENT[0],
        )
    return files


class Tls:
    """The TLS of a process: of its listeners, and towards the servers of its backend."""

    def __init__(
        self, values: Mapping[str, str], sbp: SbpSettings, able: Iterable[str], opened: Collection[str]
    ) -> None:
        """Load the files. ``able``: listeners that may have TLS; of these, those in ``opened`` use it. Raises
        SettingsError.
        """
        self.listeners: dict[str, ListenerTls] = {}
        self.peers: PeerTls | None = None
        able = sorted(able)
        for name, files in tls_files(values).items():
            if name not in able:
                raise SettingsError(f"tls.{name}: there is no such listener that may have TLS; {', '.join(able)} may")
            if name in opened:
                try:
                    self.listeners[name] = ListenerTls(files)
                except TlsError as error:
                    raise SettingsError(f"tls.{name}: {error}") from None
        if sbp.tls:
            ca, cert, key = (Path(text) if text else None for text in (sbp.tls_ca, sbp.tls_cert, sbp.tls_key))
            try:
                self.peers = PeerTls(PeerFiles(ca, cert, key))
            except TlsError as error:
                raise SettingsError(f"sbp.tls: {error}") from None

    def reload(self) -> None:
        """Read all files again, for new connections; after an error the old ones stay."""
        given: dict[str, ListenerTls | PeerTls] = {**self.listeners}
        if self.peers is not None:
            given["(backend)"] = self.peers
        for name, tls in given.items():
            try:
                tls.reload()
            except TlsError as error:
                _log.error(
                    "could not read a listener's certificate; the former one stays", listener=name, reason=str(error)
                )
            else:
                _log.info("the certificate of a listener was read again", listener=name)
