"""Optimizers for late gradients that optax does not have: optax transformations, of use without this library too."""
