"""The version of this program, as a constant: reading it from the installed package's metadata would slow the start."""

VERSION = "0.1.0"
