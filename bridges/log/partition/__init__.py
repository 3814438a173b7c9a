"""One partition's log: the way in and out of it, what topics demand, waiters, searches by time, upkeep."""
