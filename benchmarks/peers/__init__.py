"""Sides that train the same network with PyTorch or plain JAX instead of fdg_jax's engine.

The sides are this repository's own code on public interfaces, one file each. `sides` lists the files without importing
them. The sides need requirements-peers.txt (PyTorch and the requirements of fdg_jax) in a separate environment. A side
whose packages are missing there is left out, with a message.
"""
