"""Certificates of authorities that tests make for themselves."""

from __future__ import annotations

import subprocess
from pathlib import Path


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """A certificate authority in files."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path / name
        self.path.mkdir()
        self.cert, self._key = self.path / "ca.pem", self.path / "ca.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", 2, "-subj",
                f"/CN={name}", "-keyout", self._key, "-out", self.cert)  # fmt: skip

    def issue(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of somebody on this machine."""
        cert, key = self.path / f"{name}.pem", self.path / f"{name}.key"
        request, extensions = self.path / f"{name}.csr", self.path / f"{name}.ext"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                "-keyout", key, "-out", request)  # fmt: skip
        openssl("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self._key, "-CAcreateserial", "-days", 2,
                "-extfile", extensions, "-out", cert)  # fmt: skip
        return cert, key
