"""Message definitions of the topic service's calls, by their fields (see :mod:`bridges.net.grpc_schema`).

Field numbers missing in a message were never assigned, or were retired.
"""

TOPIC = """
enum AutoPartitioningStrategy
  0 AUTO_PARTITIONING_STRATEGY_UNSPECIFIED
  1 AUTO_PARTITIONING_STRATEGY_DISABLED
  2 AUTO_PARTITIONING_STRATEGY_SCALE_UP
  3 AUTO_PARTITIONING_STRATEGY_SCALE_UP_AND_DOWN
  4 AUTO_PARTITIONING_STRATEGY_PAUSED
enum MeteringMode
  0 METERING_MODE_UNSPECIFIED
  1 METERING_MODE_RESERVED_CAPACITY
  2 METERING_MODE_REQUEST_UNITS
message UpdateOffsetsInTransactionRequest
  1 operation_params Ydb.Operations.OperationParams
  2 tx TransactionIdentity
  3 topics repeated UpdateOffsetsInTransactionRequest.TopicOffsets
  4 consumer string
message UpdateOffsetsInTransactionRequest.TopicOffsets
  1 path string
  2 partitions repeated UpdateOffsetsInTransactionRequest.TopicOffsets.PartitionOffsets
message UpdateOffsetsInTransactionRequest.TopicOffsets.PartitionOffsets
  1 partition_id int64
  2 partition_offsets repeated OffsetsRange
message UpdateOffsetsInTransactionResult
message CommitOffsetRequest
  1 operation_params Ydb.Operations.OperationParams
  2 path string
  3 partition_id int64
  4 consumer string
  5 offset int64
  6 read_session_id string
message CommitOffsetResult
message MultipleWindowsStat
  1 per_minute int64
  2 per_hour int64
  3 per_day int64
message Consumer
  1 name string
  2 important bool
  3 read_from google.protobuf.Timestamp
  5 supported_codecs SupportedCodecs
  6 attributes map<string,string>
  7 consumer_stats Consumer.ConsumerStats
  8 availability_period google.protobuf.Duration optional
message Consumer.ConsumerStats
  1 min_partitions_last_read_time google.protobuf.Timestamp
  2 max_read_time_lag google.protobuf.Duration
  3 max_write_time_lag google.protobuf.Duration
  5 max_committed_time_lag google.protobuf.Duration
  4 bytes_read MultipleWindowsStat
message AlterConsumer
  1 name string
  2 set_important bool optional
  3 set_read_from google.protobuf.Timestamp
  5 set_supported_codecs SupportedCodecs
  6 alter_attributes map<string,string>
  7 set_availability_period google.protobuf.Duration in availability_period_action
  8 reset_availability_period google.protobuf.Empty in availability_period_action
message PartitioningSettings
  1 min_active_partitions int64
  3 max_active_partitions int64
  2 partition_count_limit int64
  4 auto_partitioning_settings AutoPartitioningSettings
message AutoPartitioningSettings
  1 strategy enum AutoPartitioningStrategy
  2 partition_write_speed AutoPartitioningWriteSpeedStrategy
message AutoPartitioningWriteSpeedStrategy
  1 stabilization_window google.protobuf.Duration
  2 up_utilization_percent int32
  3 down_utilization_percent int32
message AlterPartitioningSettings
  1 set_min_active_partitions int64 optional
  3 set_max_active_partitions int64 optional
  2 set_partition_count_limit int64 optional
  4 alter_auto_partitioning_settings AlterAutoPartitioningSettings optional
message AlterAutoPartitioningSettings
  1 set_strategy enum AutoPartitioningStrategy optional
  2 set_partition_write_speed AlterAutoPartitioningWriteSpeedStrategy optional
message AlterAutoPartitioningWriteSpeedStrategy
  1 set_stabilization_window google.protobuf.Duration optional
  2 set_up_utilization_percent int32 optional
  3 set_down_utilization_percent int32 optional
message CreateTopicRequest
  1 operation_params Ydb.Operations.OperationParams
  2 path string
  3 partitioning_settings PartitioningSettings
  4 retention_period google.protobuf.Duration
  5 retention_storage_mb int64
  7 supported_codecs SupportedCodecs
  8 partition_write_speed_bytes_per_second int64
  9 partition_write_burst_bytes int64
  10 attributes map<string,string>
  11 consumers repeated Consumer
  12 metering_mode enum MeteringMode
  13 metrics_level uint32 optional
  14 content_based_deduplication bool
message CreateTopicResult
message DescribeTopicRequest
  1 operation_params Ydb.Operations.OperationParams
  2 path string
  3 include_stats bool
  4 include_location bool
message PartitionKeyRange
  1 from_bound bytes optional
  2 to_bound bytes optional
message DescribeTopicResult
  1 self Ydb.Scheme.Entry
  2 partitioning_settings PartitioningSettings
  3 partitions repeated DescribeTopicResult.PartitionInfo
  4 retention_period google.protobuf.Duration
  5 retention_storage_mb int64
  7 supported_codecs SupportedCodecs
  8 partition_write_speed_bytes_per_second int64
  14 partition_total_read_speed_bytes_per_second int64
  15 partition_consumer_read_speed_bytes_per_second int64
  9 partition_write_burst_bytes int64
  10 attributes map<string,string>
  11 consumers repeated Consumer
  12 metering_mode enum MeteringMode
  13 topic_stats DescribeTopicResult.TopicStats
  16 metrics_level uint32 optional
  17 content_based_deduplication bool
message DescribeTopicResult.PartitionInfo
  1 partition_id int64
  2 active bool
  3 child_partition_ids repeated int64
  4 parent_partition_ids repeated int64
  5 partition_stats PartitionStats
  6 partition_location PartitionLocation
  7 key_range PartitionKeyRange
message DescribeTopicResult.TopicStats
  1 store_size_bytes int64
  2 min_last_write_time google.protobuf.Timestamp
  3 max_write_time_lag google.protobuf.Duration
  4 bytes_written MultipleWindowsStat
message DescribePartitionRequest
  1 operation_params Ydb.Operations.OperationParams
  2 path string
  3 partition_id int64
  4 include_stats bool
  5 include_location bool
message DescribePartitionResult
  1 partition DescribeTopicResult.PartitionInfo
message DescribeConsumerRequest
  1 operation_params Ydb.Operations.OperationParams
  2 path string
  3 consumer string
  4 include_stats bool
  5 include_location bool
message DescribeConsumerResult
  1 self Ydb.Scheme.Entry
  2 consumer Consumer
  3 partitions repeated DescribeConsumerResult.PartitionInfo
message DescribeConsumerResult.PartitionInfo
  1 partition_id int64
  2 active bool
  3 child_partition_ids repeated int64
  4 parent_partition_ids repeated int64
  5 partition_stats PartitionStats
  6 partition_consumer_stats DescribeConsumerResult.PartitionConsumerStats
  7 partition_location PartitionLocation
message DescribeConsumerResult.PartitionConsumerStats
  1 last_read_offset int64
  2 committed_offset int64
  3 read_session_id string
  4 partition_read_session_create_time google.protobuf.Timestamp
  5 last_read_time google.protobuf.Timestamp
  6 max_read_time_lag google.protobuf.Duration
  7 max_write_time_lag google.protobuf.Duration
  13 max_committed_time_lag google.protobuf.Duration
  8 bytes_read MultipleWindowsStat
  11 reader_name string
  12 connection_node_id int32
message PartitionStats
  1 partition_offsets OffsetsRange
  2 store_size_bytes int64
  3 last_write_time google.protobuf.Timestamp
  4 max_write_time_lag google.protobuf.Duration
  5 bytes_written MultipleWindowsStat
  8 partition_node_id int32
message AlterTopicRequest
  1 operation_params Ydb.Operations.OperationParams
  2 path string
  3 alter_partitioning_settings AlterPartitioningSettings
  4 set_retention_period google.protobuf.Duration
  5 set_retention_storage_mb int64 optional
  7 set_supported_codecs SupportedCodecs
  8 set_partition_write_speed_bytes_per_second int64 optional
  9 set_partition_write_burst_bytes int64 optional
  10 alter_attributes map<string,string>
  11 add_consumers repeated Consumer
  12 drop_consumers repeated string
  13 alter_consumers repeated AlterConsumer
  14 set_metering_mode enum MeteringMode
  15 set_metrics_level uint32 in metrics_level
  16 reset_metrics_level google.protobuf.Empty in metrics_level
  17 set_content_based_deduplication bool optional
message AlterTopicResult
message DropTopicRequest
  1 operation_params Ydb.Operations.OperationParams
  2 path string
message DropTopicResult
"""
