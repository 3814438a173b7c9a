"""YDB databases as sources of records and of migrations."""
