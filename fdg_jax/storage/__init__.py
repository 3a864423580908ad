"""Files that survive a crash or a power cut, and checkpoints: the exact state of a run in such files."""
