"""The pipeline's jobs, migrate, archive, replay and audit, and their commands."""
