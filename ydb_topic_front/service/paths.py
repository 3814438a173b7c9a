"""Translation between clients' paths and paths below a database.

A path that begins with ``/`` is absolute; any other is relative to the database that the call names
(docs/protocols/ydb.md, "Paths and metadata"). Every database shows the same topics. A topic's path below the database
is its name in the catalog for the protocol ``ydb``.
"""

from __future__ import annotations

from bridges.catalog.topics.names import InvalidTopicName, canonical_name
from ydb_topic_front.wire.statuses import Issue, Status, YdbError, bad_request

PROTOCOL = "ydb"
"""The protocol whose topic names in the catalog are paths below the database."""
MAX_PATH = 1024
"""Most characters of a path; longer ones are refused. No topic's path is as long."""


def below(path: str, database: str) -> str:
    """Return ``path`` relative to ``database``, without slashes at its ends; empty for the database itself.

    Raises YdbError: BAD_REQUEST for an empty path, SCHEME_ERROR for a path outside the database.
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
    """Return the absolute path of ``path``, which is relative to ``database``."""
    return "/" + "/".join([*_parts(database), *_parts(path)])


def last(path: str) -> str:
    """Return the last component of a path."""
    return path.rstrip("/").rpartition("/")[2]


def parents(path: str) -> list[str]:
    """Return the directories above ``path`` within the database, the highest first, without the database itself."""
    parts = path.split("/")
    return ["/".join(parts[:many]) for many in range(1, len(parts))]


def new_name(path: str) -> str:
    """Return the canonical name for a new topic at ``path`` below the database. Raises YdbError."""
    if not path:
        raise scheme_error("this is the database, and cannot be a topic")
    try:
        if any(part in (".", "..") for part in path.split("/")):
            raise InvalidTopicName("a part of a path cannot be '.' or '..'")
        return canonical_name(PROTOCOL, path)
    except InvalidTopicName as error:
        raise scheme_error(f"there can be no topic '{path}': {error}") from error


def scheme_error(message: str) -> YdbError:
    """Return the error for a path where nothing exists, or where the requested thing cannot."""
    return YdbError(Status.SCHEME_ERROR, message, Issue.UNKNOWN_TOPIC)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]
