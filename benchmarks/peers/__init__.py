"""What FDG is compared with beside our own methods: sides that train the same network with other people's engines.

Own code against public APIs, a file for each. `sides` says which there are and imports none of them; `worker` is
the process of such a side. They want requirements-peers.txt (PyTorch beside what fdg_jax needs) in an environment
of its own; where that is missing they are left out with a sentence.
"""
