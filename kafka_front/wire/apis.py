"""The APIs of Kafka that this front knows, and the versions it offers.

Two ranges per API: the versions whose layout the codec can build (those of Apache Kafka 4.4), and the versions offered
to clients. The reasons for the latter: docs/protocols/kafka.md, rules A-G. The important ones:

* A: the offered range must reach from the old non-flexible versions (kafkajs, aiokafka, kcat) to flexible ones.
* B: Produce is advertised from version 0, or old librdkafka silently stops compressing; 0-2 are answered with
  UNSUPPORTED_VERSION.
* C: FindCoordinator, JoinGroup and SaslHandshake stay at minimum 0 for the same feature map.
* E: key 68 only when OffsetCommit 9, OffsetFetch 9 and ConsumerGroupDescribe work too.
* F: never advertise an API that is not served: clients change their behaviour on its mere presence.
* G: clients bump epochs and omit AddPartitionsToTxn (KIP-890 part 2) by the finalized feature ``transaction.version``,
  not by versions of APIs.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum, auto
from typing import Self

from msgspec import Struct


class Server(Enum):
    """Kinds of broker that serve an API, to whose errors clients react each in another way."""

    CONTROLLER = auto()
    COORDINATOR = auto()
    LEADER = auto()  # of a partition


class ApiKey(IntEnum):
    """The APIs a client may call: key, versions of known layout, and server.

    Those versions are also the ones answered: up to the highest of Apache Kafka 4.4.0, unless docs/compatibility.md has
    a reason for less.
    """

    first: int
    last: int
    server: Server

    def __new__(cls, key: int, first: int = 0, last: int = 0, server: Server = Server.CONTROLLER) -> Self:
        api = int.__new__(cls, key)
        api._value_, api.first, api.last, api.server = key, first, last, server
        return api

    PRODUCE = 0, 0, 13, Server.LEADER
    FETCH = 1, 4, 18, Server.LEADER
    LIST_OFFSETS = 2, 1, 11, Server.LEADER
    METADATA = 3, 0, 13, Server.LEADER
    OFFSET_COMMIT = 8, 2, 10, Server.COORDINATOR
    OFFSET_FETCH = 9, 1, 10, Server.COORDINATOR
    FIND_COORDINATOR = 10, 0, 6, Server.COORDINATOR
    JOIN_GROUP = 11, 0, 9, Server.COORDINATOR
    HEARTBEAT = 12, 0, 4, Server.COORDINATOR
    LEAVE_GROUP = 13, 0, 5, Server.COORDINATOR
    SYNC_GROUP = 14, 0, 5, Server.COORDINATOR
    DESCRIBE_GROUPS = 15, 0, 6, Server.COORDINATOR
    LIST_GROUPS = 16, 0, 5, Server.COORDINATOR
    SASL_HANDSHAKE = 17, 0, 1
    API_VERSIONS = 18, 0, 5
    CREATE_TOPICS = 19, 2, 7
    DELETE_TOPICS = 20, 1, 6
    DELETE_RECORDS = 21, 0, 2, Server.LEADER
    INIT_PRODUCER_ID = 22, 0, 6, Server.COORDINATOR
    OFFSET_FOR_LEADER_EPOCH = 23, 2, 4, Server.LEADER
    ADD_PARTITIONS_TO_TXN = 24, 0, 5, Server.COORDINATOR
    ADD_OFFSETS_TO_TXN = 25, 0, 4, Server.COORDINATOR
    END_TXN = 26, 0, 5, Server.COORDINATOR
    WRITE_TXN_MARKERS = 27, 1, 2, Server.LEADER
    TXN_OFFSET_COMMIT = 28, 0, 6, Server.COORDINATOR
    DESCRIBE_ACLS = 29, 1, 3
    CREATE_ACLS = 30, 1, 3
    DELETE_ACLS = 31, 1, 3
    DESCRIBE_CONFIGS = 32, 1, 4
    ALTER_CONFIGS = 33, 0, 2
    ALTER_REPLICA_LOG_DIRS = 34, 1, 2
    DESCRIBE_LOG_DIRS = 35, 1, 5
    SASL_AUTHENTICATE = 36, 0, 2
    CREATE_PARTITIONS = 37, 0, 3
    CREATE_DELEGATION_TOKEN = 38, 1, 3
    RENEW_DELEGATION_TOKEN = 39, 1, 2
    EXPIRE_DELEGATION_TOKEN = 40, 1, 2
    DESCRIBE_DELEGATION_TOKEN = 41, 1, 3
    DELETE_GROUPS = 42, 0, 3, Server.COORDINATOR
    ELECT_LEADERS = 43, 0, 2
    INCREMENTAL_ALTER_CONFIGS = 44, 0, 1
    ALTER_PARTITION_REASSIGNMENTS = 45, 0, 1
    LIST_PARTITION_REASSIGNMENTS = 46, 0, 0
    OFFSET_DELETE = 47, 0, 0, Server.COORDINATOR
    DESCRIBE_CLIENT_QUOTAS = 48, 0, 1
    ALTER_CLIENT_QUOTAS = 49, 0, 1
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, 0, 0
    ALTER_USER_SCRAM_CREDENTIALS = 51, 0, 0
    DESCRIBE_QUORUM = 55, 0, 2
    UPDATE_FEATURES = 57, 0, 2
    DESCRIBE_CLUSTER = 60, 0, 2
    DESCRIBE_PRODUCERS = 61, 0, 0, Server.LEADER
    UNREGISTER_BROKER = 64, 0, 0
    DESCRIBE_TRANSACTIONS = 65, 0, 0, Server.COORDINATOR
    LIST_TRANSACTIONS = 66, 0, 2, Server.COORDINATOR
    CONSUMER_GROUP_HEARTBEAT = 68, 0, 1, Server.COORDINATOR
    CONSUMER_GROUP_DESCRIBE = 69, 0, 1, Server.COORDINATOR
    GET_TELEMETRY_SUBSCRIPTIONS = 71, 0, 0
    PUSH_TELEMETRY = 72, 0, 0
    LIST_CONFIG_RESOURCES = 74, 0, 1
    DESCRIBE_TOPIC_PARTITIONS = 75, 0, 0, Server.LEADER
    SHARE_GROUP_HEARTBEAT = 76, 1, 1, Server.COORDINATOR
    SHARE_GROUP_DESCRIBE = 77, 1, 1, Server.COORDINATOR
    SHARE_FETCH = 78, 1, 2, Server.LEADER
    SHARE_ACKNOWLEDGE = 79, 1, 2, Server.LEADER
    ADD_RAFT_VOTER = 80, 0, 1
    REMOVE_RAFT_VOTER = 81, 0, 0
    INITIALIZE_SHARE_GROUP_STATE = 83, 0, 0, Server.COORDINATOR
    READ_SHARE_GROUP_STATE = 84, 0, 0, Server.COORDINATOR
    WRITE_SHARE_GROUP_STATE = 85, 0, 1, Server.COORDINATOR
    DELETE_SHARE_GROUP_STATE = 86, 0, 0, Server.COORDINATOR
    READ_SHARE_GROUP_STATE_SUMMARY = 87, 0, 1, Server.COORDINATOR
    STREAMS_GROUP_HEARTBEAT = 88, 0, 1, Server.COORDINATOR
    STREAMS_GROUP_DESCRIBE = 89, 0, 1, Server.COORDINATOR
    DESCRIBE_SHARE_GROUP_OFFSETS = 90, 0, 1, Server.COORDINATOR
    ALTER_SHARE_GROUP_OFFSETS = 91, 0, 0, Server.COORDINATOR
    DELETE_SHARE_GROUP_OFFSETS = 92, 0, 0, Server.COORDINATOR
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93, 0, 0, Server.COORDINATOR
    UNREGISTER_CONTROLLER = 94, 0, 0


class Api(Struct, frozen=True):
    """An API. ``first``-``last``: versions of known layout; ``lowest``-``highest``: versions answered; ``advertised``:
    minimum in ApiVersions."""

    key: int
    name: str
    first: int
    last: int
    lowest: int
    highest: int
    advertised: int

    @property
    def module(self) -> str:
        """Return the name of the API in snake case."""
        return ApiKey(self.key).name.lower()


def _api(key: ApiKey) -> Api:
    lowest = 3 if key is ApiKey.PRODUCE else key.first
    highest = 5 if key is ApiKey.INIT_PRODUCER_ID else key.last
    name = key.name.title().replace("_", "")
    return Api(int(key), name, key.first, key.last, lowest, highest, key.first)


APIS: dict[int, Api] = {int(key): _api(key) for key in ApiKey}


def advertised(served: Iterable[int]) -> list[Api]:
    """Return the APIs to advertise: those of ``served`` keys, in key order."""
    return [APIS[key] for key in sorted(set(served)) if key in APIS]
