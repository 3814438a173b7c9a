"""SCRAM credentials of users, as admin tools describe and change them (KIP-554).

A tool sends the password salted, so the node never sees it. A user that only a tool has created has no password for
PLAIN or for other protocols. A user with such a password keeps it when credentials change. A description shows only a
credential's number of iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from anabranch_kit.run.turns import by_name, in_turns
from bridges.auth import Operation
from bridges.auth.scram import ScramKeys
from bridges.auth.users import User, UsersError, check_name
from kafka_front.dispatch import Registry
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.auth.authenticator import Authenticator
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

log = structlog.get_logger(__name__)

_MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_BY_NUMBER = {number: name for name, number in _MECHANISMS.items()}
_ITERATIONS = range(4096, 16384 + 1)
"""Allowed iterations, as at a broker."""
_MOST_SALT = 1024
"""Most bytes of a salt, and of a salted password. A broker has no limit; most clients send as many as the hash has."""
_MOST_USERS = 10_000
"""Most users beyond which requests add none (the command line may), and most changes in one request."""

_Credentials = m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_Deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion
_Upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion
_Result = m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


class _Refused(Exception):
    """A change of a user that is invalid or impossible."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Changes:
    """The changes of a request by user: all changes of a user are made, or none."""

    def __init__(self) -> None:
        self.refused: dict[str, _Refused] = {}
        # New keys by mechanism, None to delete them.
        self._wanted: dict[str, dict[str, ScramKeys | None]] = {}

    def want(self, one: _Deletion | _Upsertion) -> None:
        """Add one change of the request. As at a broker, the first that is invalid says why the user is refused, and a
        repeated one is refused only if it is valid."""
        wanted = self._wanted.setdefault(one.name, {})
        if one.name in self.refused:
            return
        try:
            mechanism = _mechanism(one)
            keys = _keys(mechanism, one) if isinstance(one, _Upsertion) else None
            if mechanism in wanted:
                raise _Refused(ErrorCode.DUPLICATE_RESOURCE, "a mechanism occurs twice for the user")
        except _Refused as refused:
            self.refused[one.name] = refused
        else:
            wanted[mechanism] = keys

    @property
    def names(self) -> list[str]:
        return list(self._wanted)

    def apply(self, users: dict[str, User]) -> None:
        """Make the changes to ``users``; may be called from a thread."""
        for name, wanted in self._wanted.items():
            if name not in self.refused:
                try:
                    changed = _changed(name, users.get(name), wanted)
                    if name not in users and len(users) >= _MOST_USERS:
                        raise _Refused(ErrorCode.POLICY_VIOLATION, f"there are {len(users)} users already")
                except _Refused as refused:
                    self.refused[name] = refused
                    continue
                if changed is None:
                    del users[name]
                else:
                    users[name] = changed


def _mechanism(one: _Deletion | _Upsertion) -> str:
    """Return the mechanism of a change of a possible user. Raises _Refused."""
    try:
        check_name(one.name)
    except UsersError as error:
        text = str(error) if one.name else "Username must not be empty"
        raise _Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, text) from None
    if one.mechanism not in _BY_NUMBER:
        raise _Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return _BY_NUMBER[one.mechanism]


def _changed(name: str, user: User | None, wanted: Mapping[str, ScramKeys | None]) -> User | None:
    """Return a user after the changes; None if nothing of it is left. Raises _Refused."""
    keys = {} if user is None else dict(user.scram)
    for mechanism, given in wanted.items():
        if given is not None:
            keys[mechanism] = given
        elif keys.pop(mechanism, None) is None:
            raise _Refused(ErrorCode.RESOURCE_NOT_FOUND, f"there are no credentials of {name!r} for {mechanism}")
    if user is None:
        return User(name, None, keys)
    return replace(user, scram=keys) if keys or user.password is not None else None


def _keys(mechanism: str, one: _Upsertion) -> ScramKeys:
    """Return the SCRAM keys of a salted password. Raises _Refused."""
    if one.iterations not in _ITERATIONS:
        text = f"iterations are {_ITERATIONS[0]} to {_ITERATIONS[-1]}, not {one.iterations}"
    elif not 0 < len(one.salt) <= _MOST_SALT:
        text = f"a salt has 1 to {_MOST_SALT} bytes, not {len(one.salt)}"
    elif not 0 < len(one.salted_password) <= _MOST_SALT:
        text = f"a salted password has 1 to {_MOST_SALT} bytes, not {len(one.salted_password)}"
    else:
        return ScramKeys.from_salted(mechanism, bytes(one.salt), one.iterations, bytes(one.salted_password))
    raise _Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)


class Credentials:
    """Handlers of requests about SCRAM credentials."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def describe(
        self, ctx: Context, request: m.DescribeUserScramCredentialsRequest
    ) -> m.DescribeUserScramCredentialsResponse:
        """Describe the credentials of the users that the request names, or of all users that have any."""
        users = self._authenticator.users
        if not request.users:
            names = [name for name, user in users.items() if user.scram]
        else:
            names = [user.name for user in request.users]
        first, twice = await by_name(names, str)
        results = []
        async for name in in_turns(first):
            user = users.get(name)
            if name in twice:
                code = ErrorCode.DUPLICATE_RESOURCE
                text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name[:100]}"
            elif user is None or not user.scram:
                code = ErrorCode.RESOURCE_NOT_FOUND
                text = f"Attempt to describe a user credential that does not exist: {name[:100]}"
            else:
                kept = [
                    m.DescribeUserScramCredentialsResponse.CredentialInfo(_MECHANISMS[mechanism], keys.iterations)
                    for mechanism, keys in user.scram.items()
                ]
                results.append(_Credentials(user=name, credential_infos=kept))
                continue
            results.append(_Credentials(user=name, error_code=code, error_message=text))
        return m.DescribeUserScramCredentialsResponse(error_message="", results=results)

    async def alter(
        self, ctx: Context, request: m.AlterUserScramCredentialsRequest
    ) -> m.AlterUserScramCredentialsResponse:
        """Set and delete credentials; the users file has the changes before the answer."""
        changes = _Changes()
        wanted: list[_Deletion | _Upsertion] = [*request.deletions, *request.upsertions]
        if len(wanted) > _MOST_USERS:
            reason = f"{len(wanted)} changes of credentials: one request has at most {_MOST_USERS}"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, reason)
        async for one in in_turns(wanted):
            changes.want(one)
        if changes.names:
            try:
                await self._authenticator.alter(changes.apply)
            except UsersError as error:
                log.error("could not change users", reason=str(error))
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR, "the users file cannot be changed; the node's log says why"
                ) from None
        results = []
        async for name in in_turns(changes.names):
            refused = changes.refused.get(name)
            code, text = (ErrorCode.NONE, None) if refused is None else (refused.code, str(refused))
            results.append(_Result(user=name, error_code=code, error_message=text))
        return m.AlterUserScramCredentialsResponse(results=results)


def register(registry: Registry, service: KafkaService) -> None:
    of_node = service.access.of_node
    credentials = Credentials(service.node.authenticator)
    registry.register(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, of_node(Operation.DESCRIBE, credentials.describe))
    registry.register(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, of_node(Operation.ALTER, credentials.alter))
