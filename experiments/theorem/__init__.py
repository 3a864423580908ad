"""The parts of `experiments.theorem1`: the bounds of Theorem 1, and the measurements that are compared with them."""
