"""The lowest layer, used by backend, bridges and fronts. It knows no protocol and imports no other package."""
