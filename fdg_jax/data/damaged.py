"""The exception for data that cannot be read, which a run may meet after hours: it ends with a checkpoint then."""

from fdg_jax.errors import BadInput


class Damaged(BadInput):
    """An image or a text cannot be read, or an image not be decoded; the message names the file."""
