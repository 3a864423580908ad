"""Optimizers for late gradients that optax lacks, as optax transformations that work without this library, too."""
