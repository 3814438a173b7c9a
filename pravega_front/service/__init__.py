"""What commands and calls mean, in terms of topics, partitions and their logs."""
