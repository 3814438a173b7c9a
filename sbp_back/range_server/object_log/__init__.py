"""A range server's log as numbered objects in a store that can put one if there is none: what is written, in which
order it counts, and how somebody else ends it. Sans-IO (docs/design.md, "More than one machine").

Not in use by any server yet: `tests/sbp_back/range_server/object_log` plays it against faults first.
"""
