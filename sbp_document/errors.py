"""Errors of a client of the document's dialect."""

from __future__ import annotations

from sbp_back.client.leader import decode_cluster
from sbp_back.errors import NO_SPACE_DETAIL, ErrorCode, SbpError
from sbp_back.wire.model import PdNode, Status
from sbp_document.wire.codes import DocumentCode, document_code

_UNKNOWN_CODES = frozenset({int(ErrorCode.RS_INTERNAL_SERVER_ERROR), int(ErrorCode.PD_INTERNAL_SERVER_ERROR)})


RECLAIMED_DETAIL = b"reclaimed"
"""Status detail that distinguishes a reclaimed offset from other missing ones."""


class DocumentError(SbpError):
    """Refusal of a request, or of one element of it. ``document_code``: the document's code; ``code``: the finer one of
    :class:`~sbp_back.errors.ErrorCode` behind it; ``detail``: the server's addition.

    Also raised for a request that the server could not finish in time; see :attr:`outcome_unknown`.
    """

    def __init__(self, status: Status) -> None:
        super().__init__(status.code, status.message)
        self.document_code = DocumentCode(document_code(status.code))
        self.detail = status.detail

    @property
    def outcome_unknown(self) -> bool:
        """Return whether the request may have been carried out, or may still be: the server failed or ran out of
        time.
        """
        return self.code in _UNKNOWN_CODES and self.detail != NO_SPACE_DETAIL

    @property
    def cluster(self) -> list[PdNode]:
        """Return the placement driver's nodes, which a PD_NOT_LEADER names; else none."""
        return decode_cluster(self.detail) if self.document_code == DocumentCode.PD_NOT_LEADER else []
