"""Objects of one range each: packing a log of objects, and moving old data from the disk."""
