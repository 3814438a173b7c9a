"""Messages and encodings of YDB's topic service; no I/O."""
