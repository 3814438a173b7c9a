"""Messages between client and server: in process, over TCP, and the listener."""
