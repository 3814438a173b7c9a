"""The controller: what its calls mean, in terms of topics, partitions and their lineage."""
