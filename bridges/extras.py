"""Extras of this distribution: which one brings a Python package that is imported only where it is needed."""

from __future__ import annotations

_EXTRAS = {
    "psycopg": "cluster",
    "obstore": "cluster",
    "jwt": "oauth",
    "ydb": "ydb",
    **dict.fromkeys(
        ("deltalake", "kafka", "numpy", "pandas", "pyarrow", "pyiceberg", "pyspark", "sqlalchemy", "xxhash"), "spark"
    ),
}


def remedy(error: ImportError) -> str | None:
    """Return what to install where an extra's package is missing; None for any other error."""
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    return None if extra is None else f"pip install 'anabranch[{extra}]'"
