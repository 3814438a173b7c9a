"""Topics and directories: made, altered, described, split."""
