"""The floors of a node: what each opens on the floors below, and the work that it does from time to time."""
