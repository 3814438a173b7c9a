"""The ledger: what each producer wrote last to a partition, and what that means for its next batch."""
