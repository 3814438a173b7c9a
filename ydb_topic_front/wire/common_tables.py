"""Message definitions of everything but topics: operations, issues, discovery, names, users, sessions of old SDKs.

Contains only what is served, or refused by name (see :mod:`bridges.net.grpc_schema` for the notation).
"""

YDB = """
message StatusIds
enum StatusIds.StatusCode
  0 STATUS_CODE_UNSPECIFIED
  400000 SUCCESS
  400010 BAD_REQUEST
  400020 UNAUTHORIZED
  400030 INTERNAL_ERROR
  400040 ABORTED
  400050 UNAVAILABLE
  400060 OVERLOADED
  400070 SCHEME_ERROR
  400080 GENERIC_ERROR
  400090 TIMEOUT
  400100 BAD_SESSION
  400120 PRECONDITION_FAILED
  400130 ALREADY_EXISTS
  400140 NOT_FOUND
  400150 SESSION_EXPIRED
  400160 CANCELLED
  400170 UNDETERMINED
  400180 UNSUPPORTED
  400190 SESSION_BUSY
  400200 EXTERNAL_ERROR
message FeatureFlag
enum FeatureFlag.Status
  0 STATUS_UNSPECIFIED
  1 ENABLED
  2 DISABLED
message CostInfo
  1 consumed_units double
message VirtualTimestamp
  1 plan_step uint64
  2 tx_id uint64
message Type
  1 type_id enum Type.PrimitiveTypeId in type
enum Type.PrimitiveTypeId
  0 PRIMITIVE_TYPE_ID_UNSPECIFIED
  1 INT32
  4097 STRING
message Value
  2 int32_value sfixed32 in value
  8 bytes_value bytes in value
  12 items repeated Value
message Column
  1 name string
  2 type Type
message ResultSet
  1 columns repeated Column
  2 rows repeated Value
"""

ISSUE = """
message IssueMessage
  1 position IssueMessage.Position
  2 message string
  3 end_position IssueMessage.Position
  4 issue_code uint32
  5 severity uint32
  6 issues repeated IssueMessage
message IssueMessage.Position
  1 row uint32
  2 column uint32
  3 file string
"""

OPERATIONS = """
# The result of an operation is one of the service's own messages. :mod:`.messages` adds the responses.
message OperationParams
  1 operation_mode enum OperationParams.OperationMode
  2 operation_timeout google.protobuf.Duration
  3 cancel_after google.protobuf.Duration
  4 labels map<string,string>
  5 report_cost_info enum Ydb.FeatureFlag.Status
enum OperationParams.OperationMode
  0 OPERATION_MODE_UNSPECIFIED
  1 SYNC
  2 ASYNC
message Operation
  1 id string
  2 ready bool
  3 status enum Ydb.StatusIds.StatusCode
  4 issues repeated Ydb.Issue.IssueMessage
  5 result google.protobuf.Any
  6 metadata google.protobuf.Any
  7 cost_info Ydb.CostInfo
"""

DISCOVERY = """
message ListEndpointsRequest
  1 database string
  2 service repeated string
message EndpointInfo
  1 address string
  2 port uint32
  3 load_factor float
  4 ssl bool
  5 service repeated string
  6 location string
  7 node_id uint32
  8 ip_v4 repeated string
  9 ip_v6 repeated string
  10 ssl_target_name_override string
message ListEndpointsResult
  1 endpoints repeated EndpointInfo
  2 self_location string
message WhoAmIRequest
  1 include_groups bool
message WhoAmIResult
  1 user string
  2 groups repeated string
"""

AUTH = """
message LoginRequest
  1 operation_params Ydb.Operations.OperationParams
  2 user string
  3 password string
message LoginResult
  1 token string
"""

SCHEME = """
message MakeDirectoryRequest
  1 operation_params Ydb.Operations.OperationParams
  2 path string
message RemoveDirectoryRequest
  1 operation_params Ydb.Operations.OperationParams
  2 path string
message ListDirectoryRequest
  1 operation_params Ydb.Operations.OperationParams
  2 path string
message Permissions
  1 subject string
  2 permission_names repeated string
message Entry
  1 name string
  2 owner string
  5 type enum Entry.Type
  6 effective_permissions repeated Permissions
  7 permissions repeated Permissions
  8 size_bytes uint64
  9 created_at Ydb.VirtualTimestamp
  10 interrupt_permission_inheritance bool
enum Entry.Type
  0 TYPE_UNSPECIFIED
  1 DIRECTORY
  2 TABLE
  3 PERS_QUEUE_GROUP
  4 DATABASE
  5 RTMR_VOLUME
  6 BLOCK_STORE_VOLUME
  7 COORDINATION_NODE
  12 COLUMN_STORE
  13 COLUMN_TABLE
  15 SEQUENCE
  16 REPLICATION
  17 TOPIC
  18 EXTERNAL_TABLE
  19 EXTERNAL_DATA_SOURCE
  20 VIEW
  21 RESOURCE_POOL
  23 TRANSFER
  24 SYS_VIEW
  25 SECRET
message ListDirectoryResult
  1 self Entry
  2 children repeated Entry
message DescribePathRequest
  1 operation_params Ydb.Operations.OperationParams
  2 path string
message DescribePathResult
  1 self Entry
message PermissionsAction
  1 grant Permissions in action
  2 revoke Permissions in action
  3 set Permissions in action
  4 change_owner string in action
message ModifyPermissionsRequest
  1 operation_params Ydb.Operations.OperationParams
  2 path string
  3 actions repeated PermissionsAction
  4 clear_permissions bool
  5 interrupt_inheritance bool in inheritance
"""

TABLE = """
# Old SDKs open a session of the table service before they do anything else.
message CreateSessionRequest
  1 operation_params Ydb.Operations.OperationParams
message CreateSessionResult
  1 session_id string
message DeleteSessionRequest
  1 session_id string
  2 operation_params Ydb.Operations.OperationParams
message KeepAliveRequest
  1 session_id string
  2 operation_params Ydb.Operations.OperationParams
message KeepAliveResult
  1 session_status enum KeepAliveResult.SessionStatus
enum KeepAliveResult.SessionStatus
  0 SESSION_STATUS_UNSPECIFIED
  1 SESSION_STATUS_READY
  2 SESSION_STATUS_BUSY
"""

QUERY = """
# Sessions and transactions. Answers have their status themselves.
message CreateSessionRequest
message CreateSessionResponse
  1 status enum Ydb.StatusIds.StatusCode
  2 issues repeated Ydb.Issue.IssueMessage
  3 session_id string
  4 node_id int64
message DeleteSessionRequest
  1 session_id string
message DeleteSessionResponse
  1 status enum Ydb.StatusIds.StatusCode
  2 issues repeated Ydb.Issue.IssueMessage
message AttachSessionRequest
  1 session_id string
message NodeShutdownHint
message SessionState
  1 status enum Ydb.StatusIds.StatusCode
  2 issues repeated Ydb.Issue.IssueMessage
  4 node_shutdown NodeShutdownHint in session_hint
message SerializableModeSettings
message OnlineModeSettings
message StaleModeSettings
message SnapshotModeSettings
message SnapshotRWModeSettings
message ReadCommittedRWModeSettings
message StrictSerializableRWModeSettings
message TransactionSettings
  1 serializable_read_write SerializableModeSettings in tx_mode
  2 online_read_only OnlineModeSettings in tx_mode
  3 stale_read_only StaleModeSettings in tx_mode
  4 snapshot_read_only SnapshotModeSettings in tx_mode
  5 snapshot_read_write SnapshotRWModeSettings in tx_mode
  6 read_committed_read_write ReadCommittedRWModeSettings in tx_mode
  7 strict_serializable_read_write StrictSerializableRWModeSettings in tx_mode
message TransactionMeta
  1 id string
message BeginTransactionRequest
  1 session_id string
  2 tx_settings TransactionSettings
message BeginTransactionResponse
  1 status enum Ydb.StatusIds.StatusCode
  2 issues repeated Ydb.Issue.IssueMessage
  3 tx_meta TransactionMeta
message CommitTransactionRequest
  1 session_id string
  2 tx_id string
message CommitTransactionResponse
  1 status enum Ydb.StatusIds.StatusCode
  2 issues repeated Ydb.Issue.IssueMessage
message RollbackTransactionRequest
  1 session_id string
  2 tx_id string
message RollbackTransactionResponse
  1 status enum Ydb.StatusIds.StatusCode
  2 issues repeated Ydb.Issue.IssueMessage
message TransactionControl
  1 tx_id string in tx_selector
  2 begin_tx TransactionSettings in tx_selector
  10 commit_tx bool
message QueryContent
  2 text string
message ExecuteQueryRequest
  1 session_id string
  3 tx_control TransactionControl
  4 query_content QueryContent in query
message ExecuteQueryResponsePart
  1 status enum Ydb.StatusIds.StatusCode
  2 issues repeated Ydb.Issue.IssueMessage
  3 result_set_index int64
  4 result_set Ydb.ResultSet
  6 tx_meta TransactionMeta
"""
