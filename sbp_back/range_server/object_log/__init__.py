"""A range server's log as numbered objects in a store that can put one if there is none (docs/design.md, "More than one
machine"; docs/storage.md, "Objects").

What decides what counts is sans-IO: ``content``, ``writer``, ``takeover``; the tests of this room play it against
faults. ``object_store`` puts it to use.
"""
