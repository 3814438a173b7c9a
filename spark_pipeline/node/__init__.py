"""The part that runs inside a node: a front over HTTP, through which the pipeline writes and finds out."""
