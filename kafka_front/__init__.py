"""The Kafka protocol front of Anabranch."""
