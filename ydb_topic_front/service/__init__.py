"""What requests mean, in terms of topics, logs and positions."""
