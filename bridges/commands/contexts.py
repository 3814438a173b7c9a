"""The file of contexts: names of nodes, each with its address and login, one of them the default of every command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
from msgspec import DecodeError, Struct, field
from msgspec.json import decode, encode

from bridges.commands.failure import EXIT_USAGE, Failed, fail

DEFAULT_NODE = "http://127.0.0.1:8080"


class Context(Struct, frozen=True, omit_defaults=True):
    """A node's console address, and who logs in there. ``ca``: a file with the authorities of its certificate."""

    node: str
    user: str | None = None
    password: str | None = None
    ca: str | None = None


class Contexts(Struct):
    """All contexts by name; ``current`` is the one in use."""

    current: str | None = None
    contexts: dict[str, Context] = field(default_factory=dict)

    def find(self, name: str) -> Context:
        found = self.contexts.get(name)
        if found is None:
            known = ", ".join(sorted(self.contexts)) or "there are none"
            fail(f"there is no context {name!r} in {path()} ({known}): 'anabranch context set' makes one", EXIT_USAGE)
        return found

    def save(self) -> None:
        """Write the file, whole or not at all. Only its owner may read it, for it may have passwords."""
        from bridges.auth.private_file import changing, write_private  # most commands only read it

        where = path()
        content = json.dumps(json.loads(encode(self)), indent=2, ensure_ascii=False) + "\n"
        try:
            with changing(where):
                write_private(where, content.encode())
        except OSError as error:
            fail(f"{where} cannot be written: {error.strerror}")


def path() -> Path:
    """Return the path of the file, which need not exist."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "anabranch" / "contexts.json"


def load() -> Contexts:
    """Return the file's contexts, none without a file."""
    try:
        return decode(path().read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, DecodeError) as error:
        fail(f"{path()} cannot be read: {error}", EXIT_USAGE)


def choose(node: str | None, name: str | None) -> tuple[str, Context]:
    """Return the name ("" for none) and the content of the context that a command uses.

    The first of these that is given: the options, ``ANABRANCH_NODE``, ``ANABRANCH_CONTEXT``, the current context, the
    default address. Only a chosen context has its login: it is for no other address.
    """
    node = node or (None if name else os.environ.get("ANABRANCH_NODE"))
    if node:
        return "", Context(node)
    kept = load()
    name = name or os.environ.get("ANABRANCH_CONTEXT") or kept.current
    return (name, kept.find(name)) if name else ("", Context(DEFAULT_NODE))


def complete_contexts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a context in a shell."""
    try:
        return [name for name in load().contexts if name.startswith(incomplete)]
    except Failed:
        return []  # there is nobody to tell
