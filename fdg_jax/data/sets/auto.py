"""The default data set: CIFAR-10 if it is available, otherwise the digits, with a message.

Digits replace CIFAR-10 only if CIFAR-10 is absent. A given data directory without CIFAR-10, or damaged files, are an
error here, too, since the user wants these files to be used.
"""

from fdg_jax.data.dataset import Dataset
from fdg_jax.data.download import Unavailable
from fdg_jax.data.sets import cifar10, digits
from fdg_jax.machine.output import say


def load(data_dir=None) -> Dataset:
    """Loads CIFAR-10, or digits with a `note`. Without a network, it gives up on a download within 5 s."""
    try:
        return cifar10.load(data_dir)
    except Unavailable as reason:
        if data_dir is not None:
            raise
        note = (
            f"This run uses scikit-learn's digits, NOT CIFAR-10. Errors on digits say nothing about "
            f"CIFAR-10. The reason: {reason}"
        )
    say(note)
    return digits.load()._replace(note=note)
