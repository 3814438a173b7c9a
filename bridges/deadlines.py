"""Deadlines of many on one timer, for fronts (see :mod:`sbp_back.deadlines`)."""

from sbp_back.deadlines import Alarm, DeadlineQueue, Deadlines

__all__ = ["Alarm", "DeadlineQueue", "Deadlines"]
