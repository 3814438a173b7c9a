"""One node: its settings, its parts put together, its life, its metrics; the contract for fronts."""
