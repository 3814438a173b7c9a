"""Calls that answer by a callback, awaited, for fronts (see :mod:`sbp_back.awaited`)."""

from sbp_back.awaited import Settle, awaited

__all__ = ["Settle", "awaited"]
