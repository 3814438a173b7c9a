"""Settings of a process: sections, their sources, validation, and origins."""
