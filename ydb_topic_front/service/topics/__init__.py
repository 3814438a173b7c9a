"""Topics and directories: create, alter, describe and split."""
