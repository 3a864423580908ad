"""The paper's training runs as commands: `python -m fdg_jax.experiments.cifar`, `.tiny_imagenet` and `.imagenet`."""
