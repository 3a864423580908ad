"""The largest stable learning rate of a parabola under late gradients: by eigenvalues, and by training it."""
