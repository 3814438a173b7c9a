"""The process of a node or server: memory, file descriptors, log, and health over HTTP."""
