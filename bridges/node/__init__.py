"""A node: its settings, its assembly and life, its metrics, and the contract for fronts."""
