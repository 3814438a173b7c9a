"""Consumer groups of KIP-848: ConsumerGroupHeartbeat, assignors, members of the classic protocol in them."""
