"""Backends that are not Anabranch's own: sbp-v0.1, the specification document to the letter, and servers of
elastic-stream. An add-on: the packages below work without it.

This module names what other packages use, and imports it on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbp_document.client.client import Appended, Created, DocumentClient, Fetched, Trimmed, Wanted
    from sbp_document.elastic_stream.client import ForeignClient
    from sbp_document.errors import DocumentError
    from sbp_document.wire.codes import DocumentCode
    from sbp_document.wire.messages import DocumentRange, DocumentStream
    from sbp_document.wire.record_batch import DocumentRecord, RecordBatch, encode_batch

__all__ = [
    "Appended",
    "Created",
    "DocumentClient",
    "DocumentCode",
    "DocumentError",
    "DocumentRange",
    "DocumentRecord",
    "DocumentStream",
    "Fetched",
    "ForeignClient",
    "RecordBatch",
    "Trimmed",
    "Wanted",
    "encode_batch",
]

_WHERE = {
    "client.client": "Appended Created DocumentClient Fetched Trimmed Wanted",
    "elastic_stream.client": "ForeignClient",
    "errors": "DocumentError",
    "wire.codes": "DocumentCode",
    "wire.messages": "DocumentRange DocumentStream",
    "wire.record_batch": "DocumentRecord RecordBatch encode_batch",
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _WHERE.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
