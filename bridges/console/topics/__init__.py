"""Topics over HTTP."""
