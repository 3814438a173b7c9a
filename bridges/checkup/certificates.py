"""Checks of listeners' certificates as a client sees them, by a TLS handshake in memory."""

from __future__ import annotations

import ssl
import stat
from collections.abc import Iterator

from anabranch_kit.net.address import Address
from anabranch_kit.net.tls import TlsError, TlsFiles
from bridges.node.finding import Finding, fine, warning, wrong

_SOON_DAYS = 14
_DAY_S = 86_400
_EXPIRED = 10
_NOT_YET = 9
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID."""
_OTHER_NAME = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


def check(listener: str, files: TlsFiles, told: Address | None, now_s: float) -> Iterator[Finding]:
    """Check the certificate of a listener.

    ``told``: the address that the listener advertises to clients, None if there is none; ``now_s``: seconds since 1970.
    """
    about = f"tls.{listener}"
    try:
        files.load()
    except TlsError as error:
        yield wrong(about, str(error), "put a PEM certificate and its key without a password there")
        return
    mode = files.key.stat().st_mode
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        yield warning(about, f"others may read {files.key}", f"chmod 600 {files.key}")
    try:
        certificate = read_as_client(files, None)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (_EXPIRED, _NOT_YET):
            when = "has ended" if error.verify_code == _EXPIRED else "is not valid yet"
            yield wrong(about, f"{files.cert} {when}: clients refuse it", "renew it; SIGHUP has the node read it again")
        else:
            yield wrong(about, f"{files.cert}: {error.verify_message}", "make a certificate for servers")
        return
    ends = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
    days = (ends - now_s) / _DAY_S
    if days < _SOON_DAYS:
        yield warning(about, f"{files.cert} ends in {days:.0f} days", "renew it; SIGHUP has the node read it again")
    else:
        yield fine(about, f"{files.cert} is valid for {days:.0f} more days")
    if told is not None:
        try:
            read_as_client(files, told.host)
        except ssl.SSLCertVerificationError as error:
            if error.verify_code not in _OTHER_NAME:
                raise
            remedy = f"have the certificate name it (subjectAltName), or change advertise.{listener}"
            yield warning(about, f"clients are told {told.host}, which {files.cert} does not name", remedy)


def read_as_client(files: TlsFiles, host: str | None) -> dict[str, object]:
    """Return the certificate as a client sees it that trusts it and, with ``host``, requires that it names ``host``.

    Raises SSLCertVerificationError.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.cert, files.key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = host is not None
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trust the certificate itself, not its issuer
    client.load_verify_locations(files.cert)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=host)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    while not (_went_on(near) & _went_on(far)):
        pass
    return dict(near.getpeercert() or {})


def _went_on(side: ssl.SSLObject) -> bool:
    """Advance the handshake of ``side`` as far as the data allows; return whether it is complete."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
