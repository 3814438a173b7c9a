"""The archive job: topics into tables in files."""
