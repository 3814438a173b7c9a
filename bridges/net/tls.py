"""TLS for a listener: a context made of files, which can be read again while the listener serves."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

#: How long a client may take for its handshake, seconds; until then it counts in no bound on connections.
HANDSHAKE_SECONDS = 10.0


class TlsError(Exception):
    """The files are not what a listener with TLS needs; a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
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
        for path in (self.cert, self.key, self.client_ca):
            if path is not None:
                try:
                    path.open("rb").close()  # what loads them does not tell which file it is that cannot be read
                except OSError as error:
                    raise TlsError(f"{path}: {error.strerror or error}") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert, self.key, self._no_password)
        except (OSError, ValueError) as error:
            raise TlsError(f"{self.cert} and {self.key} are no certificate and its key: {error}") from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ValueError) as error:
                raise TlsError(f"{self.client_ca} has no certificates of an authority: {error}") from None
            context.verify_mode = ssl.CERT_REQUIRED if self.client_required else ssl.CERT_OPTIONAL
        return context

    def _no_password(self) -> str:
        # Without this the terminal would be asked.
        raise TlsError(f"{self.key} is encrypted, and there is nobody to give its password")


class ListenerTls(ssl.SSLContext):
    """What a listener is given: every new connection gets what was read last.

    A context that serves cannot be given other files in one step (authorities are only added, and a certificate
    without its key would be kept), so this one has nothing of its own but hands connections to a whole one.
    """

    _files: TlsFiles
    _current: ssl.SSLContext

    def __new__(cls, files: TlsFiles) -> Self:
        """Raises TlsError."""
        self = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        self._files = files
        self._current = files.load()
        return self

    def reload(self) -> None:
        """Read the files again, for new connections. Raises TlsError, and keeps what it has."""
        self._current = self._files.load()

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """A connection's TLS, asked for by asyncio."""
        return self._current.wrap_bio(*args, **options)
