"""One stage: a Flax module as pure functions, its state, and what it remembers of a batch until its gradient comes."""
