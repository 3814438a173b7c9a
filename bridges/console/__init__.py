"""The HTTP interface of a node: health, metrics, a JSON API and the web console."""

FRONT = "http"
"""Name of the HTTP interface in metrics and among the fronts of a group."""
