"""The range server: keeps the data of ranges and guards their append windows."""
