"""Records as columns: batches decoded, and encoded in another format, without a Python step for each field.

All numbers of many records are read, or written, by a few calls of numpy. Small batches that follow one another are
decoded together, because each such call has a fixed cost. What is unusual (numbers of more than eight bytes, fields
that reach over their record, compressed messages, ...) raises :class:`Unusual`. Then
the batch is read record by record (:meth:`bridges.formats.base.StoredFormat.records`), which also tells what is wrong
with it.
"""

from __future__ import annotations

LEAST_RECORDS = 32
"""Records from which on columns cost less than a step for each record."""


class Unusual(Exception):
    """Input that columns do not take. Reading it record by record tells whether it is damaged."""
