"""Requests about delegation tokens (KIP-48, KIP-373): CreateDelegationToken, Renew, Expire and Describe.

As at a broker, a client must have logged in, and not with such a token. Owner, requester and renewers of a token may
describe, renew and expire it; the rights CREATE_TOKENS and DESCRIBE_TOKENS of a user, and DESCRIBE of a token, let
others request and see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_kit.run.turns import in_turns
from bridges.auth import Operation, Principal
from bridges.auth.rules import LONGEST
from kafka_front.dispatch import Registry
from kafka_front.service.delegation import MOST_RENEWERS
from kafka_front.service.sasl import is_by_token
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

_USER = "User"


class Tokens:
    """Handlers of requests about delegation tokens."""

    def __init__(self, service: KafkaService) -> None:
        self._access = service.access
        self._tokens = service.tokens

    async def create(self, ctx: Context, request: m.CreateDelegationTokenRequest) -> m.CreateDelegationTokenResponse:
        requester = _require_login(ctx)
        owner = requester
        if request.owner_principal_name:
            owner = Principal(request.owner_principal_type or _USER, request.owner_principal_name)
        if owner != requester and not self._access.tokens_of(ctx, Operation.CREATE_TOKENS, owner):
            text = f"{requester} may not request tokens of another user (CreateTokens)"
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, text)
        renewers = dict.fromkeys(Principal(one.principal_type, one.principal_name) for one in request.renewers)
        for one in (owner, *renewers):
            if one.kind != _USER:
                text = f"a token is owned and renewed by users, not by a principal of type {one.kind[:100]!r}"
                raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE, text)
        if len(renewers) > MOST_RENEWERS or max(len(one.name) for one in (owner, *renewers)) > LONGEST:
            text = f"a token has at most {MOST_RENEWERS} renewers, and names have at most {LONGEST} characters"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        token = await self._tokens.issue(owner, requester, tuple(renewers), request.max_lifetime_ms)
        return m.CreateDelegationTokenResponse(
            principal_type=owner.kind,
            principal_name=owner.name,
            token_requester_principal_type=requester.kind,
            token_requester_principal_name=requester.name,
            issue_timestamp_ms=token.issued_ms,
            expiry_timestamp_ms=token.expires_ms,
            max_timestamp_ms=token.ends_ms,
            token_id=token.id,
            hmac=self._tokens.secret(token.id),
        )

    async def renew(self, ctx: Context, request: m.RenewDelegationTokenRequest) -> m.RenewDelegationTokenResponse:
        expires = await self._tokens.renew(bytes(request.hmac), _require_login(ctx), request.renew_period_ms)
        return m.RenewDelegationTokenResponse(expiry_timestamp_ms=expires)

    async def expire(self, ctx: Context, request: m.ExpireDelegationTokenRequest) -> m.ExpireDelegationTokenResponse:
        expires = await self._tokens.expire(bytes(request.hmac), _require_login(ctx), request.expiry_time_period_ms)
        return m.ExpireDelegationTokenResponse(expiry_timestamp_ms=expires)

    async def describe(
        self, ctx: Context, request: m.DescribeDelegationTokenRequest
    ) -> m.DescribeDelegationTokenResponse:
        """Return the tokens of the principals that the request names (null: of all) that the client may see."""
        asking = _require_login(ctx)
        response = m.DescribeDelegationTokenResponse()
        wanted: set[Principal] | None = None
        if request.owners is not None:
            wanted = set()
            async for owner in in_turns(request.owners):
                wanted.add(Principal(owner.principal_type, owner.principal_name))
        async for token in in_turns(await self._tokens.latest()):
            if wanted is not None and wanted.isdisjoint((token.owner, token.requester, *token.renewers)):
                continue
            if not (
                token.concerns(asking)
                or self._access.token(ctx, Operation.DESCRIBE, token.id)
                or self._access.tokens_of(ctx, Operation.DESCRIBE_TOKENS, token.owner)
            ):
                continue
            row = m.DescribeDelegationTokenResponse
            response.tokens.append(
                row.DescribedDelegationToken(
                    principal_type=token.owner.kind,
                    principal_name=token.owner.name,
                    token_requester_principal_type=token.requester.kind,
                    token_requester_principal_name=token.requester.name,
                    issue_timestamp=token.issued_ms,
                    expiry_timestamp=token.expires_ms,
                    max_timestamp=token.ends_ms,
                    token_id=token.id,
                    hmac=self._tokens.secret(token.id),
                    renewers=[row.DescribedDelegationTokenRenewer(one.kind, one.name) for one in token.renewers],
                )
            )
        return response


def _require_login(ctx: Context) -> Principal:
    """Return the client's principal. Raises KafkaError for one that has not logged in, or has with a token."""
    principal = ctx.connection.principal
    if principal.is_anonymous or is_by_token(ctx.connection):
        text = "delegation tokens are for clients that have logged in, and not with such a token"
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, text)
    return principal.at("")


def register(registry: Registry, service: KafkaService) -> None:
    tokens = Tokens(service)
    registry.register(ApiKey.CREATE_DELEGATION_TOKEN, tokens.create)
    registry.register(ApiKey.RENEW_DELEGATION_TOKEN, tokens.renew)
    registry.register(ApiKey.EXPIRE_DELEGATION_TOKEN, tokens.expire)
    registry.register(ApiKey.DESCRIBE_DELEGATION_TOKEN, tokens.describe)
