"""Pravega scopes as sources of records and of migrations."""
