"""The Pravega front: segment store and controller, as Pravega's clients know them (docs/pravega.md)."""
