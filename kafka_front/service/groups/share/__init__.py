"""Share groups (KIP-932): several consumers take the records of one partition, each record for a limited time, and
acknowledge them individually.

``partition`` and ``group`` decide, without clock, sockets or disk; ``tables`` are the database's rows; ``service``
gives them time and a disk; ``sessions`` remembers the partitions that members fetch; ``fetch``, ``membership`` and
``offsets`` answer the requests.
"""
