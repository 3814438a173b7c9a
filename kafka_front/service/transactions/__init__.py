"""Kafka's transactions (docs/kafka-transactions.md).

``coordinator`` decides, without clock, sockets or disk; ``tables`` are the database's rows; ``service`` gives the
coordinator time, the database and the logs; ``owned`` and ``parts`` serve them across a cluster; ``requests``,
``txn_offsets`` and ``admin`` answer clients.
"""
