"""The memory budget, for fronts: they count in it what their connections hold (see :mod:`sbp_back.budget`)."""

from sbp_back.budget import Account, Kind, MemoryBudget

__all__ = ["Account", "Kind", "MemoryBudget"]
