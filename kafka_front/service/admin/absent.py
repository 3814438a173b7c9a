"""Requests about parts of a broker that are not here, answered as a broker that has them switched off.

Tools recognise a broker's release by the APIs that it offers; franz-go's kversion wants all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from bridges.auth import Operation
from kafka_front.dispatch import Registry
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError
from kafka_front.wire.messages import AddRaftVoterRequest, RemoveRaftVoterRequest, UnregisterControllerRequest

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

_SHARE_STATE = (
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
)


def _refusal(code: ErrorCode, text: str) -> Callable[[Context, Any], NoReturn]:
    """Return a handler that refuses every request."""

    def refuse(ctx: Context, request: Any) -> NoReturn:
        raise KafkaError(code, text)

    return refuse


class Quorum:
    """Handlers of requests that change the controllers (KIP-853): there is one, whose id is its node's."""

    def __init__(self, service: KafkaService) -> None:
        self._service = service

    def change_voters(self, ctx: Context, request: AddRaftVoterRequest | RemoveRaftVoterRequest) -> NoReturn:
        own = self._service.cluster_id
        if request.cluster_id not in (None, own):
            text = f'The given id "{request.cluster_id}" doesn\'t match the cluster id "{own}"'
            raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, text)
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the voters do not change: the kraft.version feature is 0")

    def unregister(self, ctx: Context, request: UnregisterControllerRequest) -> NoReturn:
        if request.controller_id == self._service.node_id:
            text = "Controller cannot unregister itself while it is active."
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        text = f"Controller ID {request.controller_id} is not currently registered."
        raise KafkaError(ErrorCode.CONTROLLER_ID_NOT_REGISTERED, text)


def register(registry: Registry, service: KafkaService) -> None:
    of_node, quorum = service.access.of_node, Quorum(service)
    registry.register(ApiKey.UNREGISTER_CONTROLLER, of_node(Operation.ALTER, quorum.unregister))
    for key in (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER):
        registry.register(key, of_node(Operation.ALTER, quorum.change_voters))
    inner = _refusal(ErrorCode.NOT_COORDINATOR, "the nodes' database keeps the state of share groups")
    for key in _SHARE_STATE:
        registry.register(key, of_node(Operation.CLUSTER_ACTION, inner))
    description = _refusal(ErrorCode.UNSUPPORTED_VERSION, "descriptions of topologies are not kept (KIP-1331)")
    registry.register(ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, description)
