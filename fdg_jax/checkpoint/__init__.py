"""States and weights on disk: the checkpoints of a run, and files of weights."""
