"""Kafka clusters as sources of records and of migrations."""
