"""One stage: a Flax module as pure functions, its state, and what it keeps of a batch until the gradient comes."""
