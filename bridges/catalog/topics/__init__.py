"""Topics: their partitions and streams, names in every protocol, configuration, and rules."""
