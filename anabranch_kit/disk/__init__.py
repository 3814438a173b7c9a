"""Files of the data directory."""
