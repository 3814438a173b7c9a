"""Access rules beside Apache Kafka: every API key with every right, asked of both."""
