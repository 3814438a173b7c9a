"""Listeners of sbp-v0.1 over a placement driver and a range server of ours."""
