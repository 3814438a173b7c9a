"""The pipeline's part of a node: an HTTP front through which the pipeline's clients query the node and write to it."""
