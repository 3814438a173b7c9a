"""Ownership of groups and transactional ids in a cluster, with the codes that Kafka's clients expect (see
:mod:`bridges.cluster.owned`)."""

from __future__ import annotations

from bridges.cluster.members import State
from bridges.cluster.owned import OwnedNames
from kafka_front.wire.errors import ErrorCode, KafkaError


class OwnedKeys(OwnedNames):
    """The groups, or the transactional ids, that this node coordinates."""

    def require(self, name: str) -> None:
        """Raise KafkaError if this node does not coordinate the name, or has not loaded it yet."""
        slot = self.slot(name)
        if slot in self._known:
            return
        if self._owners.is_mine(slot):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the {self.what} has just come to this node")
        owner = self._owners.owner(slot)
        if owner is None or owner.state is State.ENDING:
            # The ending node may be this node's former incarnation: a client that looks for another coordinator would
            # find the same one, and give up.
            text = f"the {self.what}'s node has ended, and another follows"
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)
        raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another node coordinates the {self.what}")
