"""What a client of the document's dialect raises."""

from __future__ import annotations

from sbp_back.document.codes import DocumentCode, document_code
from sbp_back.errors import SbpError
from sbp_back.leader import decode_cluster
from sbp_back.model import PdNode, Status


class DocumentError(SbpError):
    """A request, or one element of it, was refused. ``document_code`` is what the document calls it, ``code`` the
    finer one of :class:`~sbp_back.errors.ErrorCode` that the server had in mind, ``detail`` what it added."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.code, status.message)
        self.document_code = DocumentCode(document_code(status.code))
        self.detail = status.detail

    @property
    def cluster(self) -> list[PdNode]:
        """The placement driver's nodes, which a PD_NOT_LEADER names; else none."""
        return decode_cluster(self.detail) if self.document_code == DocumentCode.PD_NOT_LEADER else []
