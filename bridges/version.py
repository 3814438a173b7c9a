"""The version of this program and the commit it was made from.

The version is a constant: reading it from the installed package's metadata would slow the start.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path

VERSION = "0.1.0"

COMMIT = "commit"
"""File beside this one with the commit that a wheel or an sdist was built from; setup.py writes it."""


@cache
def find_commit() -> str | None:
    """Return the commit of the running program: of the build, or of the checkout. None if unknown."""
    here = Path(__file__).parent
    with suppress(OSError, ValueError):
        return (here / COMMIT).read_text("ascii").strip()
    with suppress(OSError, ValueError):
        return read_commit(here.parent / ".git").strip() or None
    return None


def read_commit(git: Path) -> str:
    """Return the commit that is checked out, read from git's files: a node must start without the program git."""
    if git.is_file():  # of a further work tree
        git = Path(git.read_text("utf-8").removeprefix("gitdir:").strip())
    kind, _, ref = (git / "HEAD").read_text("utf-8").strip().partition(" ")
    if kind != "ref:":
        return kind
    common = git / "commondir"
    home = git / common.read_text("utf-8").strip() if common.exists() else git
    if (home / ref).exists():
        return (home / ref).read_text("ascii")
    packed = (line.partition(" ") for line in (home / "packed-refs").read_text("utf-8").splitlines())
    return next((commit for commit, _, name in packed if name == ref), "")


def version_line() -> str:
    """Return the version, and the commit if it is known."""
    commit = find_commit()
    return f"anabranch {VERSION} ({commit[:12]})" if commit else f"anabranch {VERSION}"
