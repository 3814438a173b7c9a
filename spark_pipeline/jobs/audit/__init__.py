"""The audit job: whether records are undamaged, and two systems have the same."""
