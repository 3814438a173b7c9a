"""What listeners of every protocol share."""
