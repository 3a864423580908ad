"""Optimizers for late gradients that optax lacks. They are optax transformations and also work without this library."""
