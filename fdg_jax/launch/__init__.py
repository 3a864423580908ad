"""Starts the processes of one training on this machine, and ends them together: `python -m fdg_jax.launch`."""
