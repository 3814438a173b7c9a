"""Extras of this distribution: which extra installs a Python package that is imported only on demand."""

from __future__ import annotations

_EXTRAS = {
    "psycopg": "cluster",
    "obstore": "cluster",
    "gssapi": "kerberos",
    "jwt": "oauth",
    "ydb": "ydb",
    **dict.fromkeys(("fastavro", "grpc_tools", "jsonschema"), "schemas"),
    **dict.fromkeys(
        ("deltalake", "kafka", "pandas", "pyarrow", "pyiceberg", "pyspark", "sqlalchemy", "xxhash"), "spark"
    ),
}


def remedy(error: ImportError) -> str | None:
    """Return the command that installs the missing package of an extra; None for any other error."""
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    return None if extra is None else f"pip install 'anabranch[{extra}]'"
