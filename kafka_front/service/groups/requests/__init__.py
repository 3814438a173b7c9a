"""Requests about groups: their answers, descriptions, administration, and committed positions."""
