"""The parts that need neither Spark nor a connection: rows, decoding into columns, digests, ranges, plans, receipts."""
