"""The placement driver: keeps which streams and ranges exist, under which epoch, and on which range servers."""
