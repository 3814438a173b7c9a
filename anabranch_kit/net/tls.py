"""TLS for a listener: a context made of files that can be read again while the listener serves."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, ClassVar, Self

from msgspec import Struct

#: How long a client may take for its handshake, seconds; until then it counts in no bound on connections.
HANDSHAKE_SECONDS = 10.0


class TlsError(Exception):
    """The files are not what a listener with TLS needs; the message is a sentence for the operator."""


class Pem(Struct, frozen=True):
    """The content of a listener's files, for libraries that take no context of Python's."""

    cert: bytes
    key: bytes
    client_ca: bytes | None
    client_required: bool


class TlsFiles(Struct, frozen=True):
    """Paths of the certificate (with the chain below its root), its key and the authority of clients: PEM files.

    With ``client_ca`` clients show certificates of it: all of them if ``client_required``, otherwise those that have
    one. Without it none is asked for.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    client_required: bool = True

    def load(self) -> ssl.SSLContext:
        """Return a context made of the files' current content: TLS 1.2 and later. Raises TlsError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _show(context, self.cert, self.key)
        if self.client_ca is not None:
            _trust(context, self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if self.client_required else ssl.CERT_OPTIONAL
        return context

    def read(self) -> Pem:
        """Return the files' current content. Raises TlsError."""
        try:
            ca = None if self.client_ca is None else self.client_ca.read_bytes()
            return Pem(self.cert.read_bytes(), self.key.read_bytes(), ca, ca is not None and self.client_required)
        except OSError as error:
            raise TlsError(f"{error.filename}: {error.strerror or error}") from None


class PeerFiles(Struct, frozen=True):
    """Paths of the files for connections to servers with TLS: PEM files.

    ``ca`` is the authority of their certificates, which must name the host that is connected to; None: those that the
    system trusts. ``cert`` and ``key`` are shown where a server asks for a certificate.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def load(self) -> ssl.SSLContext:
        """Return a context made of the files' current content: TLS 1.2 and later. Raises TlsError."""
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
        # Otherwise OpenSSL would ask for a password on the terminal.
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
    # The function that loads the files does not say which one cannot be read.
    try:
        path.open("rb").close()
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror or error}") from None


class PeerTls(ssl.SSLContext):
    """The context of connections to servers: every new connection uses the files as they were read last.

    A context in use cannot be given other files in one step (authorities are only added, and a certificate without its
    key would be kept). So this one has no files itself, and hands connections to a complete context.
    """

    _protocol: ClassVar = ssl.PROTOCOL_TLS_CLIENT
    _files: TlsFiles | PeerFiles
    _current: ssl.SSLContext

    def __new__(cls, files: TlsFiles | PeerFiles) -> Self:
        """Read the files. Raises TlsError."""
        self = super().__new__(cls, cls._protocol)
        self._files = files
        self.reload()
        return self

    def reload(self) -> None:
        """Read the files again, for new connections. On TlsError the old content stays."""
        self._current = self._files.load()

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Return the TLS of one connection; asyncio calls this."""
        return self._current.wrap_bio(*args, **options)


class ListenerTls(PeerTls):
    """The same for a listener."""

    _protocol = ssl.PROTOCOL_TLS_SERVER
    pem: Pem
    """Content of all files as read last."""

    def reload(self) -> None:
        assert isinstance(self._files, TlsFiles)
        self._current, self.pem = self._files.load(), self._files.read()
