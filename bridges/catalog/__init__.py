"""Topics, their names and configuration, committed positions, and the database that keeps them."""
