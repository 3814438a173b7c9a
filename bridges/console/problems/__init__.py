"""What is wrong now, in this node and in the cluster."""
