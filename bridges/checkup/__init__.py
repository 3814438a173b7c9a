"""Checks of an installation, before a node starts or beside a running one: ``anabranch doctor``."""
