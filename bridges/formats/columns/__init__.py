"""Records as columns: batches decoded, and encoded in another format, without a Python step for each field.

All numbers of many records are read, or written, by a few calls of numpy. Small batches that follow one another are
decoded together, because each such call has a fixed cost. What is unusual (numbers of more than eight bytes, fields
that reach over their record, compressed messages, ...) raises :class:`~bridges.formats.columns.varints.Unusual`. Then
the batch is read record by record (:meth:`bridges.formats.base.StoredFormat.records`), which also tells what is wrong
with it.
"""
