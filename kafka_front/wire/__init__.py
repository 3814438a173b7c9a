"""Sans-IO codec of the Kafka protocol: bytes <-> typed messages.

``messages`` holds one class per message, unified over its versions; ``codec`` has the functions that read and write one
version of it; ``apis`` lists the keys and versions that this front serves; ``errors`` names the error codes.
"""
