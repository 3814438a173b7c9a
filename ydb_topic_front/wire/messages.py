"""Classes of all messages, created at the first import of this module, in a descriptor pool of their own.

``messages["Ydb.Topic.CommitOffsetRequest"]`` is a class like those of generated code. Names are YDB's, so that an
``Any`` has the type name that clients expect.
"""

from __future__ import annotations

from bridges.net.grpc_schema import Messages
from ydb_topic_front.wire import common_tables, stream_tables, topic_tables
from ydb_topic_front.wire.methods import METHODS, Shape


def _responses(package: str) -> str:
    """Return the responses of a package's calls: each has one field, the operation."""
    return "".join(
        f"message {method.name}Response\n  1 operation Ydb.Operations.Operation\n"
        for method in METHODS.values()
        if method.shape is Shape.CALL and method.has_operation and method.request.startswith(f"{package}.")
    )


messages = Messages(
    {
        "Ydb": common_tables.YDB,
        "Ydb.Issue": common_tables.ISSUE,
        "Ydb.Operations": common_tables.OPERATIONS,
        "Ydb.Discovery": common_tables.DISCOVERY + _responses("Ydb.Discovery"),
        "Ydb.Auth": common_tables.AUTH + _responses("Ydb.Auth"),
        "Ydb.Scheme": common_tables.SCHEME + _responses("Ydb.Scheme"),
        "Ydb.Table": common_tables.TABLE + _responses("Ydb.Table"),
        "Ydb.Query": common_tables.QUERY,
        "Ydb.Topic": (
            stream_tables.COMMON
            + stream_tables.WRITE
            + stream_tables.READ
            + topic_tables.TOPIC
            + _responses("Ydb.Topic")
        ),
    }
)

Operation = messages["Ydb.Operations.Operation"]
StreamWriteFromClient = messages["Ydb.Topic.StreamWriteMessage.FromClient"]
StreamWriteFromServer = messages["Ydb.Topic.StreamWriteMessage.FromServer"]
WriteRequest = messages["Ydb.Topic.StreamWriteMessage.WriteRequest"]
MessageData = messages["Ydb.Topic.StreamWriteMessage.WriteRequest.MessageData"]
StreamReadFromClient = messages["Ydb.Topic.StreamReadMessage.FromClient"]
StreamReadFromServer = messages["Ydb.Topic.StreamReadMessage.FromServer"]
TransactionIdentity = messages["Ydb.Topic.TransactionIdentity"]
