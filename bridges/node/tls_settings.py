"""The settings ``tls.LISTENER.WHAT``: which files a listener's TLS is made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bridges.net.tls import TlsFiles

WHAT = ("cert", "key", "client_ca", "client")
"""What can be said of a listener's TLS."""
_CLIENT = ("required", "optional")


def split(name: str) -> tuple[str, str]:
    """Listener and what is said of it, of ``LISTENER.WHAT``."""
    listener, _, what = name.rpartition(".")
    return listener, what


def check(values: Mapping[str, str]) -> None:
    """Whether values by ``LISTENER.WHAT`` go together. Raises ValueError."""
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
    """The files by listener, of values that :func:`check` found good."""
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
