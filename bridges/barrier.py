"""The barrier around what others left behind, for fronts (see :mod:`sbp_back.barrier`)."""

from sbp_back.barrier import Barrier

__all__ = ["Barrier"]
