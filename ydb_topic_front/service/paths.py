"""Paths of clients, and where they lie below a database.

A path that begins with ``/`` is a whole one, any other begins at the database that the call names
(docs/protocols/ydb.md, "Paths and metadata"). Topics are the same in every database; what lies below it is what the
catalog's names of topics say in the protocol ``ydb``.
"""

from __future__ import annotations

from bridges.catalog.names import InvalidTopicName, canonical_name
from ydb_topic_front.wire.statuses import Issue, Status, YdbError, bad_request

PROTOCOL = "ydb"
"""Under this name the catalog keeps what this protocol calls a topic."""
MAX_PATH = 1024
"""Characters of a path that is looked at; no topic's is as long."""


def below(path: str, database: str) -> str:
    """Where ``path`` lies below ``database``, without slashes at its ends; empty for the database itself.

    Raises YdbError: BAD_REQUEST for no path at all, SCHEME_ERROR for one that lies elsewhere.
    """
    if not path:
        raise bad_request("the path is empty")
    if len(path) > MAX_PATH or len(database) > MAX_PATH:
        raise bad_request(f"a path has at most {MAX_PATH} characters")
    parts = _parts(path)
    if not path.startswith("/"):
        return "/".join(parts)
    own = _parts(database)
    if parts[: len(own)] != own:
        raise scheme_error(f"'/{'/'.join(parts)}' does not lie in the database '{whole('', database)}'")
    return "/".join(parts[len(own) :])


def whole(path: str, database: str) -> str:
    """The path that begins at the root, of what lies at ``path`` below ``database``."""
    return "/" + "/".join([*_parts(database), *_parts(path)])


def last(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rpartition("/")[2]


def parents(path: str) -> list[str]:
    """The directories that ``path`` lies in below the database, the highest first; not the database itself."""
    parts = path.split("/")
    return ["/".join(parts[:many]) for many in range(1, len(parts))]


def new_name(path: str) -> str:
    """The canonical name of a topic that is to be made at ``path`` below the database. Raises YdbError."""
    if not path:
        raise scheme_error("this is the database, and cannot be a topic")
    try:
        if any(part in (".", "..") for part in path.split("/")):
            raise InvalidTopicName("a part of a path cannot be '.' or '..'")
        return canonical_name(PROTOCOL, path)
    except InvalidTopicName as error:
        raise scheme_error(f"there can be no topic '{path}': {error}") from error


def scheme_error(message: str) -> YdbError:
    """There is nothing at a path, or nothing can be there."""
    return YdbError(Status.SCHEME_ERROR, message, Issue.UNKNOWN_TOPIC)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]
