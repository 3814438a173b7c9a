"""Which node owns what: members of a cluster, slots and their owners, and who follows when one of them ends."""
