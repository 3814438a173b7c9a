"""Durable storage of ranges: a write-ahead log shared by all streams, with group commit (docs/storage.md)."""

from anabranch_kit.disk.files import Files
from sbp_back.range_server.store.index import StoredRange, StoredStream
from sbp_back.range_server.store.options import StoreOptions
from sbp_back.range_server.store.stats import StoreStats
from sbp_back.range_server.store.store import Store

__all__ = ["Files", "Store", "StoreOptions", "StoreStats", "StoredRange", "StoredStream"]
