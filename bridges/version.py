"""The version of this program, without asking the package index of the installation (which costs start-up time)."""

VERSION = "0.1.0"
