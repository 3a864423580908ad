"""The parts of `experiments.theorem1`: the bounds of Theorem 1, and what is measured against them."""
