"""ApiVersions (key 18): the APIs and features that this front serves (KIP-35, KIP-511)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from kafka_front.dispatch import Registry
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING:
    from kafka_front.context import Context

#: Highest level of each feature of the cluster (KIP-584): consumer groups of KIP-848, share groups of KIP-932 with
#: the dead letters of KIP-1191, streams groups of KIP-1071, and transactions of KIP-890.
FEATURES = {"group.version": 1, "share.version": 2, "streams.version": 1, "transaction.version": 2}
_ZERO_SINCE = 4
"""First version whose clients accept a feature that begins with level 0 (KAFKA-17011); older Java clients fail."""
_ADDRESSED_SINCE = 5
"""First version in which a client may tell the cluster and the node that it expects at the address (KIP-1242)."""
_ANY_NODE = -1
#: Legal names and versions of client software (docs/protocols/kafka.md, rule 6).
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class Identity(NamedTuple):
    """The broker that a client has connected to."""

    cluster_id: str = ""
    node_id: int = 0


def finalized_features(transaction_version: int) -> dict[str, int]:
    """Return the feature levels that clients must use; ``transaction_version`` is the one of transactions (KIP-890)."""
    return {**FEATURES, "transaction.version": transaction_version}


def register(
    registry: Registry,
    transaction_version: int = FEATURES["transaction.version"],
    identity: Identity = Identity(),  # noqa: B008 - immutable
) -> None:
    """Serve ApiVersions for all APIs of the registry, registered before or after this call."""
    finalized = finalized_features(transaction_version)

    def answer(code: int, version: int = 0) -> ApiVersionsResponse:
        rows = [
            ApiVersionsResponse.ApiVersion(api_key=api.key, min_version=api.advertised, max_version=api.highest)
            for api in registry.advertised()
        ]
        supported = FEATURES.items() if version >= _ZERO_SINCE else ()
        return ApiVersionsResponse(
            error_code=code,
            api_keys=rows,
            supported_features=[ApiVersionsResponse.SupportedFeatureKey(name, 0, level) for name, level in supported],
            finalized_features_epoch=0,
            finalized_features=[
                ApiVersionsResponse.FinalizedFeatureKey(name, level, level) for name, level in finalized.items()
            ],
        )

    def handle(ctx: Context, request: ApiVersionsRequest) -> ApiVersionsResponse:
        if ctx.version >= 3:
            names = (request.client_software_name, request.client_software_version)
            if not all(_SOFTWARE.fullmatch(name) for name in names):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            ctx.connection.software = " ".join(names)
        if ctx.version >= _ADDRESSED_SINCE and (request.cluster_id is not None or request.node_id != _ANY_NODE):
            if request.cluster_id is None or request.node_id == _ANY_NODE:
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            if (request.cluster_id, request.node_id) != identity:
                return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
        return answer(ErrorCode.NONE, ctx.version)

    registry.register(ApiKey.API_VERSIONS, handle)
    registry.versions_mismatch = lambda: answer(ErrorCode.UNSUPPORTED_VERSION)
