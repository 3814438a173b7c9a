"""Access rules and quotas over HTTP."""
