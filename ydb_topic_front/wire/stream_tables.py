"""Message definitions of StreamWrite, StreamRead and StreamDirectRead, by their fields
(see :mod:`bridges.net.grpc_schema`).

Names and numbers are those of the package ``Ydb.Topic``; ``tests/ydb_topic_front/wire/test_messages.py`` compares them
with the definitions that YDB's SDK for Python was generated from.
"""

COMMON = """
# What both streams and the control plane use.
enum Codec
  0 CODEC_UNSPECIFIED
  1 CODEC_RAW
  2 CODEC_GZIP
  3 CODEC_LZOP
  4 CODEC_ZSTD
  10000 CODEC_CUSTOM
message SupportedCodecs
  1 codecs repeated int32
message OffsetsRange
  1 start int64
  2 end int64
message UpdateTokenRequest
  1 token string
message UpdateTokenResponse
message PartitionWithGeneration
  1 partition_id int64
  2 generation int64
message MetadataItem
  1 key string
  2 value bytes
message TransactionIdentity
  1 id string
  2 session string
message PartitionLocation
  1 node_id int32
  2 generation int64
"""

WRITE = """
# A stream of FromClient is answered with one of FromServer; WriteAck tells what became of a message.
message StreamWriteMessage
message StreamWriteMessage.FromClient
  1 init_request StreamWriteMessage.InitRequest in client_message
  2 write_request StreamWriteMessage.WriteRequest in client_message
  3 update_token_request UpdateTokenRequest in client_message
message StreamWriteMessage.FromServer
  1 status enum Ydb.StatusIds.StatusCode
  2 issues repeated Ydb.Issue.IssueMessage
  3 init_response StreamWriteMessage.InitResponse in server_message
  4 write_response StreamWriteMessage.WriteResponse in server_message
  5 update_token_response UpdateTokenResponse in server_message
message StreamWriteMessage.InitRequest
  1 path string
  2 producer_id string
  3 write_session_meta map<string,string>
  4 message_group_id string in partitioning
  5 partition_id int64 in partitioning
  7 partition_with_generation PartitionWithGeneration in partitioning
  6 get_last_seq_no bool
message StreamWriteMessage.InitResponse
  1 last_seq_no int64
  2 session_id string
  3 partition_id int64
  4 supported_codecs SupportedCodecs
message StreamWriteMessage.WriteRequest
  1 messages repeated StreamWriteMessage.WriteRequest.MessageData
  2 codec int32
  3 tx TransactionIdentity optional
message StreamWriteMessage.WriteRequest.MessageData
  1 seq_no int64
  2 created_at google.protobuf.Timestamp
  3 data bytes
  4 uncompressed_size int64
  5 message_group_id string in partitioning
  6 partition_id int64 in partitioning
  8 partition_with_generation PartitionWithGeneration in partitioning
  7 metadata_items repeated MetadataItem
message StreamWriteMessage.WriteResponse
  1 acks repeated StreamWriteMessage.WriteResponse.WriteAck
  2 partition_id int64
  3 write_statistics StreamWriteMessage.WriteResponse.WriteStatistics
message StreamWriteMessage.WriteResponse.WriteAck
  1 seq_no int64
  2 written StreamWriteMessage.WriteResponse.WriteAck.Written in message_write_status
  3 skipped StreamWriteMessage.WriteResponse.WriteAck.Skipped in message_write_status
  4 written_in_tx StreamWriteMessage.WriteResponse.WriteAck.WrittenInTx in message_write_status
message StreamWriteMessage.WriteResponse.WriteAck.Written
  1 offset int64
message StreamWriteMessage.WriteResponse.WriteAck.Skipped
  1 reason enum StreamWriteMessage.WriteResponse.WriteAck.Skipped.Reason
enum StreamWriteMessage.WriteResponse.WriteAck.Skipped.Reason
  0 REASON_UNSPECIFIED
  1 REASON_ALREADY_WRITTEN
message StreamWriteMessage.WriteResponse.WriteAck.WrittenInTx
message StreamWriteMessage.WriteResponse.WriteStatistics
  1 persisting_time google.protobuf.Duration
  2 min_queue_wait_time google.protobuf.Duration
  3 max_queue_wait_time google.protobuf.Duration
  4 partition_quota_wait_time google.protobuf.Duration
  5 topic_quota_wait_time google.protobuf.Duration
"""

READ = """
# FromServer starts, stops and fills sessions of partitions; credits (ReadRequest) are bytes of ReadResponse.
message StreamReadMessage
message StreamReadMessage.PartitionSession
  1 partition_session_id int64
  2 path string
  3 partition_id int64
message StreamReadMessage.FromClient
  1 init_request StreamReadMessage.InitRequest in client_message
  2 read_request StreamReadMessage.ReadRequest in client_message
  3 commit_offset_request StreamReadMessage.CommitOffsetRequest in client_message
  4 partition_session_status_request StreamReadMessage.PartitionSessionStatusRequest in client_message
  5 update_token_request UpdateTokenRequest in client_message
  8 direct_read_ack StreamReadMessage.DirectReadAck in client_message
  6 start_partition_session_response StreamReadMessage.StartPartitionSessionResponse in client_message
  7 stop_partition_session_response StreamReadMessage.StopPartitionSessionResponse in client_message
message StreamReadMessage.FromServer
  1 status enum Ydb.StatusIds.StatusCode
  2 issues repeated Ydb.Issue.IssueMessage
  3 init_response StreamReadMessage.InitResponse in server_message
  4 read_response StreamReadMessage.ReadResponse in server_message
  5 commit_offset_response StreamReadMessage.CommitOffsetResponse in server_message
  6 partition_session_status_response StreamReadMessage.PartitionSessionStatusResponse in server_message
  7 update_token_response UpdateTokenResponse in server_message
  8 start_partition_session_request StreamReadMessage.StartPartitionSessionRequest in server_message
  9 stop_partition_session_request StreamReadMessage.StopPartitionSessionRequest in server_message
  10 update_partition_session StreamReadMessage.UpdatePartitionSession in server_message
  11 end_partition_session StreamReadMessage.EndPartitionSession in server_message
message StreamReadMessage.InitRequest
  1 topics_read_settings repeated StreamReadMessage.InitRequest.TopicReadSettings
  2 consumer string
  3 reader_name string
  4 direct_read bool
  5 auto_partitioning_support bool
  6 partition_max_in_flight_bytes uint64
message StreamReadMessage.InitRequest.TopicReadSettings
  1 path string
  2 partition_ids repeated int64
  3 max_lag google.protobuf.Duration
  4 read_from google.protobuf.Timestamp
message StreamReadMessage.InitResponse
  1 session_id string
message StreamReadMessage.ReadRequest
  1 bytes_size int64
message StreamReadMessage.ReadResponse
  1 partition_data repeated StreamReadMessage.ReadResponse.PartitionData
  2 bytes_size int64
message StreamReadMessage.ReadResponse.MessageData
  1 offset int64
  2 seq_no int64
  3 created_at google.protobuf.Timestamp
  5 data bytes
  6 uncompressed_size int64
  7 message_group_id string
  8 metadata_items repeated MetadataItem
message StreamReadMessage.ReadResponse.Batch
  1 message_data repeated StreamReadMessage.ReadResponse.MessageData
  2 producer_id string
  3 write_session_meta map<string,string>
  4 codec int32
  5 written_at google.protobuf.Timestamp
message StreamReadMessage.ReadResponse.PartitionData
  1 partition_session_id int64
  2 batches repeated StreamReadMessage.ReadResponse.Batch
message StreamReadMessage.CommitOffsetRequest
  1 commit_offsets repeated StreamReadMessage.CommitOffsetRequest.PartitionCommitOffset
message StreamReadMessage.CommitOffsetRequest.PartitionCommitOffset
  1 partition_session_id int64
  2 offsets repeated OffsetsRange
message StreamReadMessage.CommitOffsetResponse
  1 partitions_committed_offsets repeated StreamReadMessage.CommitOffsetResponse.PartitionCommittedOffset
message StreamReadMessage.CommitOffsetResponse.PartitionCommittedOffset
  1 partition_session_id int64
  2 committed_offset int64
message StreamReadMessage.PartitionSessionStatusRequest
  1 partition_session_id int64
message StreamReadMessage.PartitionSessionStatusResponse
  1 partition_session_id int64
  2 partition_offsets OffsetsRange
  3 committed_offset int64
  4 write_time_high_watermark google.protobuf.Timestamp
  5 read_offset int64
message StreamReadMessage.StartPartitionSessionRequest
  1 partition_session StreamReadMessage.PartitionSession
  2 committed_offset int64
  3 partition_offsets OffsetsRange
  4 partition_location PartitionLocation
message StreamReadMessage.StartPartitionSessionResponse
  1 partition_session_id int64
  2 read_offset int64 optional
  3 commit_offset int64 optional
message StreamReadMessage.StopPartitionSessionRequest
  1 partition_session_id int64
  2 graceful bool
  3 committed_offset int64
  4 last_direct_read_id int64
message StreamReadMessage.StopPartitionSessionResponse
  1 partition_session_id int64
  2 graceful bool
message StreamReadMessage.UpdatePartitionSession
  1 partition_session_id int64
  2 partition_location PartitionLocation
message StreamReadMessage.DirectReadAck
  1 partition_session_id int64
  2 direct_read_id int64
message StreamReadMessage.EndPartitionSession
  1 partition_session_id int64
  2 adjacent_partition_ids repeated int64
  3 child_partition_ids repeated int64
# The data of a StreamRead with direct_read, each partition's from the node that owns it.
message StreamDirectReadMessage
message StreamDirectReadMessage.FromClient
  1 init_request StreamDirectReadMessage.InitRequest in client_message
  2 start_direct_read_partition_session_request StreamDirectReadMessage.StartDirectReadPartitionSessionRequest \
    in client_message
  3 update_token_request UpdateTokenRequest in client_message
message StreamDirectReadMessage.FromServer
  1 status enum Ydb.StatusIds.StatusCode
  2 issues repeated Ydb.Issue.IssueMessage
  6 init_response StreamDirectReadMessage.InitResponse in server_message
  7 start_direct_read_partition_session_response StreamDirectReadMessage.StartDirectReadPartitionSessionResponse \
    in server_message
  3 stop_direct_read_partition_session StreamDirectReadMessage.StopDirectReadPartitionSession in server_message
  4 direct_read_response StreamDirectReadMessage.DirectReadResponse in server_message
  5 update_token_response UpdateTokenResponse in server_message
message StreamDirectReadMessage.InitRequest
  1 session_id string
  2 topics_read_settings repeated StreamDirectReadMessage.InitRequest.TopicReadSettings
  3 consumer string
message StreamDirectReadMessage.InitRequest.TopicReadSettings
  1 path string
message StreamDirectReadMessage.InitResponse
message StreamDirectReadMessage.StartDirectReadPartitionSessionRequest
  1 partition_session_id int64
  2 last_direct_read_id int64
  3 generation int64
message StreamDirectReadMessage.StartDirectReadPartitionSessionResponse
  1 partition_session_id int64
  2 generation int64
message StreamDirectReadMessage.StopDirectReadPartitionSession
  1 status enum Ydb.StatusIds.StatusCode
  2 issues repeated Ydb.Issue.IssueMessage
  3 partition_session_id int64
  4 generation int64
message StreamDirectReadMessage.DirectReadResponse
  1 partition_session_id int64
  2 direct_read_id int64
  3 partition_data StreamReadMessage.ReadResponse.PartitionData
  4 bytes_size int64
"""
