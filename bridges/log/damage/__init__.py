"""Damaged batches: how far damage reaches, and how an operator has readers pass over it."""
