"""Writing the log: queued items become durable groups, on a thread of their own."""
