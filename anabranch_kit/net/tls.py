"""TLS for a listener: a context made of files, which can be read again while the listener serves."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

#: How long a client may take for its handshake, seconds; until then it counts in no bound on connections.
HANDSHAKE_SECONDS = 10.0


class TlsError(Exception):
    """The files are not what a listener with TLS needs; a sentence for the operator."""


class Pem(Struct, frozen=True):
    """The content of a listener's files, for libraries that take no context of Python's."""

    cert: bytes
    key: bytes
    client_ca: bytes | None
    client_required: bool


class TlsFiles(Struct, frozen=True):
    """Where the certificate (with the chain below its root), its key and the authority of clients lie: PEM files.

    With ``client_ca`` clients show certificates of it: all of them if ``client_required``, otherwise those that have
    one. Without it none is asked for.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    client_required: bool = True

    def load(self) -> ssl.SSLContext:
        """A context of what the files say now: TLS 1.2 and later. Raises TlsError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _show(context, self.cert, self.key)
        if self.client_ca is not None:
            _trust(context, self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if self.client_required else ssl.CERT_OPTIONAL
        return context

    def read(self) -> Pem:
        """What the files say now. Raises TlsError."""
        try:
            ca = None if self.client_ca is None else self.client_ca.read_bytes()
            return Pem(self.cert.read_bytes(), self.key.read_bytes(), ca, ca is not None and self.client_required)
        except OSError as error:
            raise TlsError(f"{error.filename}: {error.strerror or error}") from None


class PeerFiles(Struct, frozen=True):
    """What is needed to connect to servers with TLS: PEM files.

    ``ca`` is the authority of their certificates, which must name the host that is connected to; None: those that the
    system trusts. ``cert`` and ``key`` are shown where a server asks for a certificate.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def load(self) -> ssl.SSLContext:
        """A context of what the files say now: TLS 1.2 and later. Raises TlsError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca is None:
            context.load_default_certs()
        else:
            _trust(context, self.ca)
        if self.cert is not None and self.key is not None:
            _show(context, self.cert, self.key)
        return context


def _show(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    def no_password() -> str:
        # Without this the terminal would be asked.
        raise TlsError(f"{key} is encrypted, and there is nobody to give its password")

    _readable(cert)
    _readable(key)
    try:
        context.load_cert_chain(cert, key, no_password)
    except (OSError, ValueError) as error:
        raise TlsError(f"{cert} and {key} are no certificate and its key: {error}") from None


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    _readable(ca)
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise TlsError(f"{ca} has no certificates of an authority: {error}") from None


def _readable(path: Path) -> None:
    # What loads files does not tell which one it is that cannot be read.
    try:
        path.open("rb").close()
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror or error}") from None


class ListenerTls(ssl.SSLContext):
    """What a listener is given: every new connection gets what was read last.

    A context that serves cannot be given other files in one step (authorities are only added, and a certificate
    without its key would be kept), so this one has nothing of its own but hands connections to a whole one.
    """

    _files: TlsFiles
    _current: ssl.SSLContext
    pem: Pem
    """What was read last, whole."""

    def __new__(cls, files: TlsFiles) -> Self:
        """Raises TlsError."""
        self = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        self._files = files
        self._current, self.pem = files.load(), files.read()
        return self

    def reload(self) -> None:
        """Read the files again, for new connections. Raises TlsError, and keeps what it has."""
        self._current, self.pem = self._files.load(), self._files.read()

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """A connection's TLS, asked for by asyncio."""
        return self._current.wrap_bio(*args, **options)


class PeerTls(ssl.SSLContext):
    """What connects to servers, likewise: every new connection gets what was read last."""

    _files: PeerFiles
    _current: ssl.SSLContext

    def __new__(cls, files: PeerFiles) -> Self:
        """Raises TlsError."""
        self = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        self._files = files
        self._current = files.load()
        return self

    def reload(self) -> None:
        """Read the files again, for new connections. Raises TlsError, and keeps what it has."""
        self._current = self._files.load()

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """A connection's TLS, asked for by asyncio."""
        return self._current.wrap_bio(*args, **options)
