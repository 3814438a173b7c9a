"""Kafka's transactions (docs/kafka-transactions.md).

``coordinator`` decides, without clock, sockets or disk; ``tables`` is what the database keeps; ``service`` gives the
coordinator time, the database and the logs; ``requests``, ``txn_offsets`` and ``admin`` answer clients.
"""
