"""State of a partition beside its bytes: the offset index, snapshots, rows in the node's database."""
