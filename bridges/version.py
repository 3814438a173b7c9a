"""The version of this program, as a constant: reading it from the installed package's metadata would slow the start."""

from __future__ import annotations

VERSION = "0.1.0"


def find_commit() -> str | None:
    """Return the commit that pip installed from a repository (PEP 610); None if unknown."""
    import json  # imported here, because every start imports this module
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        installed = json.loads(distribution("anabranch").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None
    commit = installed.get("vcs_info", {}).get("commit_id")
    return commit if isinstance(commit, str) else None


def version_line() -> str:
    """Return the version, and the commit if it is known."""
    commit = find_commit()
    return f"anabranch {VERSION} ({commit[:12]})" if commit else f"anabranch {VERSION}"
