"""The largest stable learning rate of a parabola under late gradients: computed from eigenvalues, and found by
training."""
