"""The HTTP interface of a node: health, metrics, a JSON API and the web console."""
