"""ApiVersions (key 18): what this front serves (KIP-35, KIP-511)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kafka_front.dispatch import Registry
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING:
    from kafka_front.context import Context

#: What the whole cluster has, by the level that clients go by (KIP-584): consumer groups of KIP-848.
FEATURES = (("group.version", 1),)
#: What a client may call itself (reference/kafka.md, rule 6).
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def register(registry: Registry) -> None:
    """Serve ApiVersions for whatever is registered, now or later."""

    def answer(code: int) -> ApiVersionsResponse:
        rows = [
            ApiVersionsResponse.ApiVersion(api_key=api.key, min_version=api.advertised, max_version=api.highest)
            for api in registry.advertised()
        ]
        return ApiVersionsResponse(
            error_code=code,
            api_keys=rows,
            supported_features=[ApiVersionsResponse.SupportedFeatureKey(name, 0, level) for name, level in FEATURES],
            finalized_features_epoch=0,
            finalized_features=[
                ApiVersionsResponse.FinalizedFeatureKey(name, level, level) for name, level in FEATURES
            ],
        )

    def handle(ctx: Context, request: ApiVersionsRequest) -> ApiVersionsResponse:
        if ctx.version >= 3:
            names = (request.client_software_name, request.client_software_version)
            if not all(_SOFTWARE.fullmatch(name) for name in names):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            ctx.connection.attributes["client_software"] = names
        return answer(ErrorCode.NONE)

    registry.register(ApiKey.API_VERSIONS, handle)
    registry.versions_mismatch = lambda: answer(ErrorCode.UNSUPPORTED_VERSION)
