"""A range server's log as numbered objects in a store with put-if-absent (docs/cluster.md, "The log as objects";
docs/storage.md, "Objects").

The modules that decide what counts are sans-IO: ``objects.content``, ``writer``, ``ownership.takeover``; the tests of
this package play them against faults. ``object_store`` uses them.
"""
