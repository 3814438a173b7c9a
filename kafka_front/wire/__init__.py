"""Sans-IO codec of the Kafka protocol: bytes <-> typed messages.

``messages`` holds one class per message, unified over its versions; ``codec`` gives the functions that read and write
one version of it; ``apis`` says which keys and versions this front serves; ``errors`` names the error codes.
"""
