"""Files that survive a crash or a power cut, and the exact state of a run in them."""
