"""Work on entries and segments that were written before: copying, moving, replacing, and deleting them."""
