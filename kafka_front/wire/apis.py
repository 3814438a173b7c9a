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
from enum import IntEnum

from msgspec import Struct


class ApiKey(IntEnum):
    """Keys of the APIs a client may call."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94


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
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in self.name).lstrip("_")


def _table(rows: Iterable[tuple[int, str, int, int, int, int]]) -> dict[int, Api]:
    apis = {}
    for key, name, first, last, lowest, highest in rows:
        advertised = 0 if key == ApiKey.PRODUCE else lowest
        apis[key] = Api(key, name, first, last, lowest, highest, advertised)
    return apis


APIS: dict[int, Api] = _table(
    [
        # key, name, known layouts, answered versions: up to the highest of Apache Kafka 4.4.0, unless
        # docs/compatibility.md has a reason for less
        (0, "Produce", 0, 13, 3, 13),
        (1, "Fetch", 4, 18, 4, 18),
        (2, "ListOffsets", 1, 11, 1, 11),
        (3, "Metadata", 0, 13, 0, 13),
        (8, "OffsetCommit", 2, 10, 2, 10),
        (9, "OffsetFetch", 1, 10, 1, 10),
        (10, "FindCoordinator", 0, 6, 0, 6),
        (11, "JoinGroup", 0, 9, 0, 9),
        (12, "Heartbeat", 0, 4, 0, 4),
        (13, "LeaveGroup", 0, 5, 0, 5),
        (14, "SyncGroup", 0, 5, 0, 5),
        (15, "DescribeGroups", 0, 6, 0, 6),
        (16, "ListGroups", 0, 5, 0, 5),
        (17, "SaslHandshake", 0, 1, 0, 1),
        (18, "ApiVersions", 0, 5, 0, 5),
        (19, "CreateTopics", 2, 7, 2, 7),
        (20, "DeleteTopics", 1, 6, 1, 6),
        (21, "DeleteRecords", 0, 2, 0, 2),
        (22, "InitProducerId", 0, 6, 0, 5),
        (23, "OffsetForLeaderEpoch", 2, 4, 2, 4),
        (24, "AddPartitionsToTxn", 0, 5, 0, 5),
        (25, "AddOffsetsToTxn", 0, 4, 0, 4),
        (26, "EndTxn", 0, 5, 0, 5),
        (27, "WriteTxnMarkers", 1, 2, 1, 2),
        (28, "TxnOffsetCommit", 0, 6, 0, 6),
        (29, "DescribeAcls", 1, 3, 1, 3),
        (30, "CreateAcls", 1, 3, 1, 3),
        (31, "DeleteAcls", 1, 3, 1, 3),
        (32, "DescribeConfigs", 1, 4, 1, 4),
        (33, "AlterConfigs", 0, 2, 0, 2),
        (34, "AlterReplicaLogDirs", 1, 2, 1, 2),
        (35, "DescribeLogDirs", 1, 5, 1, 5),
        (36, "SaslAuthenticate", 0, 2, 0, 2),
        (37, "CreatePartitions", 0, 3, 0, 3),
        (38, "CreateDelegationToken", 1, 3, 1, 3),
        (39, "RenewDelegationToken", 1, 2, 1, 2),
        (40, "ExpireDelegationToken", 1, 2, 1, 2),
        (41, "DescribeDelegationToken", 1, 3, 1, 3),
        (42, "DeleteGroups", 0, 3, 0, 3),
        (43, "ElectLeaders", 0, 2, 0, 2),
        (44, "IncrementalAlterConfigs", 0, 1, 0, 1),
        (45, "AlterPartitionReassignments", 0, 1, 0, 1),
        (46, "ListPartitionReassignments", 0, 0, 0, 0),
        (47, "OffsetDelete", 0, 0, 0, 0),
        (48, "DescribeClientQuotas", 0, 1, 0, 1),
        (49, "AlterClientQuotas", 0, 1, 0, 1),
        (50, "DescribeUserScramCredentials", 0, 0, 0, 0),
        (51, "AlterUserScramCredentials", 0, 0, 0, 0),
        (55, "DescribeQuorum", 0, 2, 0, 2),
        (57, "UpdateFeatures", 0, 2, 0, 2),
        (60, "DescribeCluster", 0, 2, 0, 2),
        (61, "DescribeProducers", 0, 0, 0, 0),
        (64, "UnregisterBroker", 0, 0, 0, 0),
        (65, "DescribeTransactions", 0, 0, 0, 0),
        (66, "ListTransactions", 0, 2, 0, 2),
        (68, "ConsumerGroupHeartbeat", 0, 1, 0, 1),
        (69, "ConsumerGroupDescribe", 0, 1, 0, 1),
        (74, "ListConfigResources", 0, 1, 0, 1),
        (75, "DescribeTopicPartitions", 0, 0, 0, 0),
        (76, "ShareGroupHeartbeat", 1, 1, 1, 1),
        (77, "ShareGroupDescribe", 1, 1, 1, 1),
        (78, "ShareFetch", 1, 2, 1, 2),
        (79, "ShareAcknowledge", 1, 2, 1, 2),
        (80, "AddRaftVoter", 0, 1, 0, 1),
        (81, "RemoveRaftVoter", 0, 0, 0, 0),
        (83, "InitializeShareGroupState", 0, 0, 0, 0),
        (84, "ReadShareGroupState", 0, 0, 0, 0),
        (85, "WriteShareGroupState", 0, 1, 0, 1),
        (86, "DeleteShareGroupState", 0, 0, 0, 0),
        (87, "ReadShareGroupStateSummary", 0, 1, 0, 1),
        (88, "StreamsGroupHeartbeat", 0, 1, 0, 1),
        (89, "StreamsGroupDescribe", 0, 1, 0, 1),
        (90, "DescribeShareGroupOffsets", 0, 1, 0, 1),
        (91, "AlterShareGroupOffsets", 0, 0, 0, 0),
        (92, "DeleteShareGroupOffsets", 0, 0, 0, 0),
        (93, "StreamsGroupTopologyDescriptionUpdate", 0, 0, 0, 0),
        (94, "UnregisterController", 0, 0, 0, 0),
    ]
)


def advertised(served: Iterable[int]) -> list[Api]:
    """Return the APIs to advertise: those of ``served`` keys, in key order."""
    return [APIS[key] for key in sorted(set(served)) if key in APIS]
