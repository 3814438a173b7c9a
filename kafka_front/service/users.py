"""What admin tools ask about users: SCRAM credentials (KIP-554)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridges.auth import Operation
from bridges.turns import by_name, in_turns
from kafka_front.dispatch import Registry
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

if TYPE_CHECKING:
    from bridges.auth.authenticator import Authenticator
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

_MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}

_Credentials = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


class Credentials:
    """The handler of DescribeUserScramCredentials."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def handle(
        self, ctx: Context, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        """Of the users named, or of all that have any."""
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
                code, text = ErrorCode.DUPLICATE_RESOURCE, f"{name[:100]!r} occurs twice in the request"
            elif user is None or not user.scram:
                code, text = ErrorCode.RESOURCE_NOT_FOUND, f"there are no credentials of {name[:100]!r}"
            else:
                kept = [
                    DescribeUserScramCredentialsResponse.CredentialInfo(_MECHANISMS[mechanism], keys.iterations)
                    for mechanism, keys in user.scram.items()
                ]
                results.append(_Credentials(user=name, credential_infos=kept))
                continue
            results.append(_Credentials(user=name, error_code=int(code), error_message=text))
        return DescribeUserScramCredentialsResponse(error_message="", results=results)


def register(registry: Registry, service: KafkaService) -> None:
    of_node = service.access.of_node
    credentials = Credentials(service.node.authenticator)
    registry.register(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, of_node(Operation.DESCRIBE, credentials.handle))
