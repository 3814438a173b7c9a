"""Values and keys of schema registries, decoded and encoded."""
