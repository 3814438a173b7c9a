"""Encoders of columns of records into Kafka's record batches, one partition each."""
