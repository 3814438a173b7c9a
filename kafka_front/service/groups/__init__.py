"""The classic consumer group coordinator and the requests that reach it."""
