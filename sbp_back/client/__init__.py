"""The client of sbp-0.2: streams, their ranges, writers, placement drivers."""
