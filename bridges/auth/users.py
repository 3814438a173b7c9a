"""The users of a node and the file that stores them: names and password hashes, no passwords."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from bridges.auth import ANONYMOUS
from bridges.auth.passwords import LONGEST_PASSWORD, PasswordHash
from bridges.auth.private_file import changing, write_private
from bridges.auth.scram import ScramKeys

_VERSION = 1
# A name contains no character that separates names in some protocol: ":" in Basic, "," and "=" in SCRAM, "/" in paths.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")


class UsersError(Exception):
    """The file of users cannot be used, or a change of it is invalid; the message is a sentence for the operator."""


class User(Struct, frozen=True):
    """A user that may log in. ``scram`` has its SCRAM keys by mechanism.

    A user whose credentials came as SCRAM keys has no ``password``: the node has never seen it (KIP-554).
    """

    name: str
    password: PasswordHash | None
    scram: Mapping[str, ScramKeys]

    @property
    def fingerprint(self) -> str:
        """Return a value that differs between passwords and reveals nothing about them."""
        if self.password is not None:
            return self.password.fingerprint
        keys = b"".join(mechanism.encode() + keys.stored_key for mechanism, keys in sorted(self.scram.items()))
        return hashlib.sha256(keys).hexdigest()[:16]


Users = Mapping[str, User]


def check_name(name: str) -> None:
    """Raise UsersError if ``name`` cannot be a user's name."""
    if not _NAME.fullmatch(name) or name == ANONYMOUS.name:
        raise UsersError(
            f"{name!r} cannot be a user's name: up to 128 letters, digits and . _ @ + -, the first a letter or a digit"
        )


def check_password(password: str) -> None:
    """Raise UsersError if ``password`` cannot be a password."""
    if not password or "\0" in password or len(password.encode()) > LONGEST_PASSWORD:
        raise UsersError(f"a password has 1 to {LONGEST_PASSWORD} bytes, none of them zero")


def load(path: Path) -> dict[str, User]:
    """Return the users of a file; none if there is no file. Raises UsersError."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsersError(f"{path}: {error}") from None
    try:
        document = json.loads(text)
        if document["version"] != _VERSION:
            raise UsersError(f"{path} was written by another release: its version is {document['version']!r}")
        return {name: _user(name, value) for name, value in document["users"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsersError(f"{path} is no file of users: {error!r}") from None


def change(path: Path, edit: Callable[[dict[str, User]], None]) -> None:
    """Have ``edit`` change the users of a file, while no other process does. Raises UsersError."""
    try:
        with changing(path):
            users = load(path)
            edit(users)
            document = {"version": _VERSION, "users": {name: _json(user) for name, user in sorted(users.items())}}
            write_private(path, json.dumps(document, indent=2).encode() + b"\n")
    except OSError as error:
        raise UsersError(f"{path}: {error.strerror or error}") from None


def _user(name: str, value: Any) -> User:
    check_name(name)
    scram = {mechanism: ScramKeys.from_json(mechanism, keys) for mechanism, keys in value.get("scram", {}).items()}
    if "scrypt" not in value and not scram:
        raise ValueError(f"{name} has neither a password nor keys of SCRAM")
    return User(name, PasswordHash.from_json(value["scrypt"]) if "scrypt" in value else None, scram)


def _json(user: User) -> dict[str, Any]:
    document: dict[str, Any] = {} if user.password is None else {"scrypt": user.password.to_json()}
    if user.scram:
        document["scram"] = {mechanism: keys.to_json() for mechanism, keys in sorted(user.scram.items())}
    return document
