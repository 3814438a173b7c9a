"""Codecs that compress records: those of Kafka's batches and of YDB's messages, bounded in what they decompress."""
