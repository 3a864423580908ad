"""Sides that train the same network with PyTorch or plain JAX instead of fdg_jax's engine.

Our own code against public APIs, one file each. `sides` says which there are and imports none of them; `worker` is
the process of such a side. They need requirements-peers.txt (PyTorch and what fdg_jax needs) in an
environment of its own; a side that is missing there is left out, with a sentence that says so.
"""
