"""Where a stage lies, and how a message gets to it."""
