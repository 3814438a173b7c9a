"""Commands for topics, their records, readers and transactions."""
