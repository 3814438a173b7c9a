"""Ownership in a cluster: its members, the slots and their owners, and taking over from a member that has ended."""
