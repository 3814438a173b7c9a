"""Messages and methods of the controller's gRPC service, as tables (docs/protocols/pravega.md, "Controller").

Field numbers and names are those on the wire. Enumerations are plain int32 on the wire; the classes below have their
values.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from bridges.net.grpc_schema import Messages

PACKAGE = "io.pravega.controller.stream.api.grpc.v1"
SERVICE = f"{PACKAGE}.ControllerService"

_TABLE = """
message ServerRequest
message NodeUri
  1 endpoint string
  2 port int32
message ServerResponse
  1 nodeURI repeated NodeUri
message ScopeInfo
  1 scope string
message StreamInfo
  1 scope string
  2 stream string
  3 accessOperation int32
message ScalingPolicy
  1 scaleType int32
  2 targetRate int32
  3 scaleFactor int32
  4 minNumSegments int32
message RetentionPolicy
  1 retentionType int32
  2 retentionParam int64
  3 retentionMax int64
message Tags
  1 tag repeated string
message StreamConfig
  1 streamInfo StreamInfo
  2 scalingPolicy ScalingPolicy
  3 retentionPolicy RetentionPolicy
  4 tags Tags
  5 timestampAggregationTimeout int64
  6 rolloverSizeBytes int64
message Status          # of every answer that is one word
  1 status int32
message ExistsResponse
  1 exists bool
message ContinuationToken
  1 token string
message ScopesRequest
  1 continuationToken ContinuationToken
message ScopesResponse
  1 scopes repeated string
  2 continuationToken ContinuationToken
message StreamsInScopeRequest
  1 scope ScopeInfo
  2 continuationToken ContinuationToken
message StreamsInScopeWithTagRequest
  1 scope ScopeInfo
  2 tag string
  3 continuationToken ContinuationToken
message StreamsInScopeResponse
  1 streams repeated StreamInfo
  2 continuationToken ContinuationToken
  3 status int32
message SegmentId
  1 streamInfo StreamInfo
  2 segmentId int64
message SegmentRange
  1 segmentId SegmentId
  2 minKey double
  3 maxKey double
message SegmentRanges
  1 segmentRanges repeated SegmentRange
  2 delegationToken string
message GetEpochSegmentsRequest
  1 streamInfo StreamInfo
  2 epoch int32
message GetSegmentsRequest
  1 streamInfo StreamInfo
  2 timestamp int64
message SegmentLocation
  1 segmentId SegmentId
  2 offset int64
message SegmentsAtTime
  1 segments repeated SegmentLocation
  2 delegationToken string
message SegmentEntry
  1 segment SegmentRange
  2 value repeated int64
message SuccessorResponse
  1 segments repeated SegmentEntry
  2 delegationToken string
message StreamCut
  1 streamInfo StreamInfo
  2 cut map<int64,int64>
message StreamCutRange
  1 streamInfo StreamInfo
  2 from map<int64,int64>
  3 to map<int64,int64>
message StreamCutRangeResponse
  1 segments repeated SegmentId
  2 delegationToken string
message KeyRangeEntry
  1 start double
  2 end double
message ScaleRequest
  1 streamInfo StreamInfo
  2 sealedSegments repeated int64
  3 newKeyRanges repeated KeyRangeEntry
  4 scaleTimestamp int64
message ScaleResponse
  1 status int32
  2 segments repeated SegmentRange
  3 epoch int32
message ScaleStatusRequest
  1 streamInfo StreamInfo
  2 epoch int32
message ValidityResponse
  1 response bool
message TxnId
  1 highBits int64
  2 lowBits int64
message CreateTxnRequest
  1 streamInfo StreamInfo
  2 lease int64
  3 scaleGracePeriod int64
message CreateTxnResponse
  1 txnId TxnId
  2 activeSegments repeated SegmentRange
  3 delegationToken string
message TxnRequest
  1 streamInfo StreamInfo
  2 txnId TxnId
  3 writerId string
  4 timestamp int64
message PingTxnRequest
  1 streamInfo StreamInfo
  2 txnId TxnId
  3 lease int64
message ListCompletedTxnRequest
  1 streamInfo StreamInfo
message TxnResponse
  1 txnId TxnId
  2 status int32
message ListCompletedTxnResponse
  2 response repeated TxnResponse
message DelegationToken
  1 delegationToken string
message TimestampFromWriter
  1 writer string
  2 position StreamCut
  3 timestamp int64
message RemoveWriterRequest
  1 writer string
  2 stream StreamInfo
message ReaderGroupConfiguration
  1 scope string
  2 readerGroupName string
  3 groupRefreshTimeMillis int64
  4 automaticCheckpointIntervalMillis int64
  5 maxOutstandingCheckpointRequest int32
  6 retentionType int32
  7 generation int64
  8 readerGroupId string
  9 startingStreamCuts repeated StreamCut
  10 endingStreamCuts repeated StreamCut
  11 rolloverSizeBytes int64
message CreateReaderGroupResponse
  1 status int32
  2 config ReaderGroupConfiguration
message ReaderGroupInfo
  1 scope string
  2 readerGroup string
  3 readerGroupId string
  4 generation int64
message ReaderGroupConfigResponse
  1 config ReaderGroupConfiguration
  2 status int32
message UpdateReaderGroupResponse
  1 status int32
  2 generation int64
message SubscribersResponse
  1 subscribers repeated string
  2 status int32
message SubscriberStreamCut
  1 subscriber string
  2 generation int64
  3 readerGroupId string
  4 streamCut StreamCut
message KeyValueTableConfig
  1 scope string
  2 kvtName string
  3 partitionCount int32
  4 primaryKeyLength int32
  5 secondaryKeyLength int32
  6 rolloverSizeBytes int64
message KeyValueTableInfo
  1 scope string
  2 kvtName string
message KeyValueTableConfigResponse
  1 config KeyValueTableConfig
  2 status int32
message KVTablesInScopeRequest
  1 scope ScopeInfo
  2 continuationToken ContinuationToken
message KVTablesInScopeResponse
  1 kvtables repeated KeyValueTableInfo
  2 continuationToken ContinuationToken
  3 status int32
message ControllerToBucketMappingRequest
  1 serviceType int32
message ControllerToBucketMappingResponse
  1 mapping repeated ControllerToBucketMappingResponse.MappingEntry
message ControllerToBucketMappingResponse.MappingEntry
  1 key string
  2 value BucketIds
message BucketIds
  1 id repeated int32
"""

MESSAGES = Messages({PACKAGE: _TABLE})

METHODS: dict[str, tuple[str, str]] = {
    "getControllerServerList": ("ServerRequest", "ServerResponse"),
    "getControllerToBucketMapping": ("ControllerToBucketMappingRequest", "ControllerToBucketMappingResponse"),
    "createScope": ("ScopeInfo", "Status"),
    "checkScopeExists": ("ScopeInfo", "ExistsResponse"),
    "listScopes": ("ScopesRequest", "ScopesResponse"),
    "deleteScope": ("ScopeInfo", "Status"),
    "deleteScopeRecursive": ("ScopeInfo", "Status"),
    "createStream": ("StreamConfig", "Status"),
    "checkStreamExists": ("StreamInfo", "ExistsResponse"),
    "listStreamsInScope": ("StreamsInScopeRequest", "StreamsInScopeResponse"),
    "listStreamsInScopeForTag": ("StreamsInScopeWithTagRequest", "StreamsInScopeResponse"),
    "getStreamConfiguration": ("StreamInfo", "StreamConfig"),
    "updateStream": ("StreamConfig", "Status"),
    "truncateStream": ("StreamCut", "Status"),
    "sealStream": ("StreamInfo", "Status"),
    "deleteStream": ("StreamInfo", "Status"),
    "getCurrentSegments": ("StreamInfo", "SegmentRanges"),
    "getEpochSegments": ("GetEpochSegmentsRequest", "SegmentRanges"),
    "getSegments": ("GetSegmentsRequest", "SegmentsAtTime"),
    "getSegmentsImmediatelyFollowing": ("SegmentId", "SuccessorResponse"),
    "getSegmentsImmediatlyFollowing": ("SegmentId", "SuccessorResponse"),  # as old clients spell it
    "getSegmentsBetween": ("StreamCutRange", "StreamCutRangeResponse"),
    "scale": ("ScaleRequest", "ScaleResponse"),
    "checkScale": ("ScaleStatusRequest", "Status"),
    "getURI": ("SegmentId", "NodeUri"),
    "isSegmentValid": ("SegmentId", "ValidityResponse"),
    "isStreamCutValid": ("StreamCut", "ValidityResponse"),
    "createTransaction": ("CreateTxnRequest", "CreateTxnResponse"),
    "commitTransaction": ("TxnRequest", "Status"),
    "abortTransaction": ("TxnRequest", "Status"),
    "pingTransaction": ("PingTxnRequest", "Status"),
    "checkTransactionState": ("TxnRequest", "Status"),
    "listCompletedTransactions": ("ListCompletedTxnRequest", "ListCompletedTxnResponse"),
    "getDelegationToken": ("StreamInfo", "DelegationToken"),
    "noteTimestampFromWriter": ("TimestampFromWriter", "Status"),
    "removeWriter": ("RemoveWriterRequest", "Status"),
    "createReaderGroup": ("ReaderGroupConfiguration", "CreateReaderGroupResponse"),
    "getReaderGroupConfig": ("ReaderGroupInfo", "ReaderGroupConfigResponse"),
    "updateReaderGroup": ("ReaderGroupConfiguration", "UpdateReaderGroupResponse"),
    "deleteReaderGroup": ("ReaderGroupInfo", "Status"),
    "listSubscribers": ("StreamInfo", "SubscribersResponse"),
    "updateSubscriberStreamCut": ("SubscriberStreamCut", "Status"),
    "createKeyValueTable": ("KeyValueTableConfig", "Status"),
    "getCurrentSegmentsKeyValueTable": ("KeyValueTableInfo", "SegmentRanges"),
    "listKeyValueTablesInScope": ("KVTablesInScopeRequest", "KVTablesInScopeResponse"),
    "getKeyValueTableConfiguration": ("KeyValueTableInfo", "KeyValueTableConfigResponse"),
    "deleteKeyValueTable": ("KeyValueTableInfo", "Status"),
}
"""Messages of each method: request and answer."""


def message(name: str) -> Any:
    """Return the class of a message."""
    return MESSAGES[f"{PACKAGE}.{name}"]


class CreateScopeStatus(IntEnum):
    SUCCESS = 0
    FAILURE = 1
    SCOPE_EXISTS = 2
    INVALID_SCOPE_NAME = 3


class DeleteScopeStatus(IntEnum):
    SUCCESS = 0
    FAILURE = 1
    SCOPE_NOT_FOUND = 2
    SCOPE_NOT_EMPTY = 3


class CreateStreamStatus(IntEnum):
    SUCCESS = 0
    FAILURE = 1
    STREAM_EXISTS = 2
    SCOPE_NOT_FOUND = 3
    INVALID_STREAM_NAME = 4


class UpdateStreamStatus(IntEnum):
    SUCCESS = 0
    FAILURE = 1
    STREAM_NOT_FOUND = 2
    SCOPE_NOT_FOUND = 3
    STREAM_SEALED = 4


class DeleteStreamStatus(IntEnum):
    SUCCESS = 0
    FAILURE = 1
    STREAM_NOT_FOUND = 2
    STREAM_NOT_SEALED = 3


class InScopeStatus(IntEnum):
    SUCCESS = 0
    FAILURE = 1
    SCOPE_NOT_FOUND = 2


class CreateTableStatus(IntEnum):
    SUCCESS = 0
    FAILURE = 1
    TABLE_EXISTS = 2
    SCOPE_NOT_FOUND = 3
    INVALID_TABLE_NAME = 4


class TableStatus(IntEnum):
    SUCCESS = 0
    FAILURE = 1
    TABLE_NOT_FOUND = 2


class ScaleStatus(IntEnum):
    STARTED = 0
    FAILURE = 1
    PRECONDITION_FAILED = 2


class ScaleProgress(IntEnum):
    IN_PROGRESS = 0
    SUCCESS = 1
    INVALID_INPUT = 2
    INTERNAL_ERROR = 3


class TxnStatus(IntEnum):
    SUCCESS = 0
    FAILURE = 1
    STREAM_NOT_FOUND = 2
    TRANSACTION_NOT_FOUND = 3


class PingStatus(IntEnum):
    OK = 0
    LEASE_TOO_LARGE = 1
    MAX_EXECUTION_TIME_EXCEEDED = 2
    DISCONNECTED = 4
    COMMITTED = 5
    ABORTED = 6
    UNKNOWN = 7


class TxnState(IntEnum):
    UNKNOWN = 0
    OPEN = 1
    COMMITTING = 2
    COMMITTED = 3
    ABORTING = 4
    ABORTED = 5


class GroupStatus(IntEnum):
    """Status of reader groups. ``NOT_FOUND`` refers to the scope at creation, else to the group."""

    SUCCESS = 0
    FAILURE = 1
    NOT_FOUND = 2
    INVALID = 3


class ScaleType(IntEnum):
    FIXED_NUM_SEGMENTS = 0
    BY_RATE_IN_KBYTES_PER_SEC = 1
    BY_RATE_IN_EVENTS_PER_SEC = 2


class RetentionType(IntEnum):
    UNKNOWN = 0
    TIME = 1
    SIZE = 2
