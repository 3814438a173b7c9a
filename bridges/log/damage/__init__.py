"""Damaged batches: how far damage reaches, and how an operator lets readers skip it."""
