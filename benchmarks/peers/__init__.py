"""Sides that train the same network with PyTorch or plain JAX instead of fdg_jax's engine.

They are our own code on public interfaces, one file each. `sides` lists them and imports none; `worker` is the process
of such a side. They need requirements-peers.txt (PyTorch and what fdg_jax needs) in an environment of its own. A side
that is missing there is left out, with a sentence that says so.
"""
