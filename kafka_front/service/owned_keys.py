"""What one node of several coordinates, in the words of Kafka's clients (see :mod:`bridges.cluster.owned`)."""

from __future__ import annotations

from bridges.cluster.members import State
from bridges.cluster.owned import OwnedNames
from kafka_front.wire.errors import ErrorCode, KafkaError


class OwnedKeys(OwnedNames):
    """Groups, or transactional ids."""

    def require(self, name: str) -> None:
        """Raises KafkaError where this node does not coordinate it, or not yet."""
        slot = self.slot(name)
        if slot in self._known:
            return
        if self._owners.is_mine(slot):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the {self.what} has just come to this node")
        owner = self._owners.owner(slot)
        if owner is None or owner.state is State.ENDING:
            # This node's former self, say: clients that are told to look for another one find the same, and give up.
            text = f"the {self.what}'s node has ended, and another follows"
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)
        raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another node coordinates the {self.what}")
