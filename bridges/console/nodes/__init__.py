"""The node and its cluster over HTTP."""
