"""Commands for access rules, quotas and users."""
