"""Migrate, archive, replay and audit, and their commands."""
