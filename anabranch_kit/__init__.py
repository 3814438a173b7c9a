"""The ground floor: what backend, bridges and fronts stand on. It knows no protocol and imports no other package."""
