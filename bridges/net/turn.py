"""How much of one turn of the event loop connections take together, for fronts (see :mod:`sbp_back.transport.turn`)."""

from sbp_back.transport.turn import FRAME_WORK, LITTLE, RECEIVED_AT_ONCE, Turn

__all__ = ["FRAME_WORK", "LITTLE", "RECEIVED_AT_ONCE", "Turn"]
