"""Fetch, its sessions and read-ahead; ListOffsets and OffsetForLeaderEpoch."""
