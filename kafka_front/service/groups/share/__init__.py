"""Share groups (KIP-932): several consumers take the records of one partition, each record for a time, and acknowledge
them one by one.

``partition`` and ``group`` decide, without clock, sockets or disk; ``tables`` is what the database keeps, ``service``
brings them to life, ``sessions`` remembers what members fetch; ``fetch``, ``membership`` and ``offsets`` answer the
requests.
"""
