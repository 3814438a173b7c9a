"""Classes of all messages, created at the first import of this module, in a descriptor pool of their own.

``messages["Ydb.Topic.CommitOffsetRequest"]`` is a class like those of generated code. Names are YDB's, so that an
``Any`` has the type name that clients expect.
"""

from __future__ import annotations

from bridges.net.grpc_schema import Messages
from ydb_topic_front.wire import common_tables, stream_tables, topic_tables

messages = Messages(
    {
        "Ydb": common_tables.YDB,
        "Ydb.Issue": common_tables.ISSUE,
        "Ydb.Operations": common_tables.OPERATIONS,
        "Ydb.Discovery": common_tables.DISCOVERY,
        "Ydb.Auth": common_tables.AUTH,
        "Ydb.Scheme": common_tables.SCHEME,
        "Ydb.Table": common_tables.TABLE,
        "Ydb.Query": common_tables.QUERY,
        "Ydb.Topic": stream_tables.COMMON + stream_tables.WRITE + stream_tables.READ + topic_tables.TOPIC,
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
