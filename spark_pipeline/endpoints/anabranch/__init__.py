"""Nodes as sources of records: from their range servers, or through the node."""
