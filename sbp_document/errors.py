"""What a client of the document's dialect raises."""

from __future__ import annotations

from sbp_back.client.leader import decode_cluster
from sbp_back.errors import NO_SPACE_DETAIL, ErrorCode, SbpError
from sbp_back.wire.model import PdNode, Status
from sbp_document.wire.codes import DocumentCode, document_code

_UNKNOWN_CODES = frozenset({int(ErrorCode.RS_INTERNAL_SERVER_ERROR), int(ErrorCode.PD_INTERNAL_SERVER_ERROR)})


RECLAIMED_DETAIL = b"reclaimed"
"""Status detail with which a server tells an offset that was reclaimed from others that are not there."""


class DocumentError(SbpError):
    """A request, or one element of it, was refused. ``document_code`` is what the document calls it, ``code`` the
    finer one of :class:`~sbp_back.errors.ErrorCode` that the server had in mind, ``detail`` what it added.

    A request that the server could not bring to its end in time ends so, too; see :attr:`outcome_unknown`."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.code, status.message)
        self.document_code = DocumentCode(document_code(status.code))
        self.detail = status.detail

    @property
    def outcome_unknown(self) -> bool:
        """Whether what was asked may have been done, or may still be: the server failed or ran out of time."""
        return self.code in _UNKNOWN_CODES and self.detail != NO_SPACE_DETAIL

    @property
    def cluster(self) -> list[PdNode]:
        """The placement driver's nodes, which a PD_NOT_LEADER names; else none."""
        return decode_cluster(self.detail) if self.document_code == DocumentCode.PD_NOT_LEADER else []
