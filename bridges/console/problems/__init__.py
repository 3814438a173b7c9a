"""Problems that there are now, in this node and in the cluster."""
