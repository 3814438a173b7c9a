"""Failures of data stored on a disk or in a database."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot carry out a request; the message is one clear sentence for an operator."""


class StoreLocked(StoreError):
    """Another process holds the data directory."""


class StoreVersionError(StoreError):
    """The data directory was written by a version this one does not read."""


class StoreCorrupt(StoreError):
    """Data that was acknowledged as durable is damaged. Never cut silently (docs/storage.md, "Start")."""


class StoreFailed(StoreError):
    """A write or flush failed: nothing after it may be acknowledged, the process must stop."""


class DiskFull(StoreError):
    """No room for the append; reads go on and the append may be retried once there is room."""
