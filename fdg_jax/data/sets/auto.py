"""What a first run trains on: CIFAR-10 where it can be had, otherwise the digits, and then says so.

Only the absence of CIFAR-10 is answered with digits. A data directory given by name, and files that are
there but damaged, are errors here too: whoever put them there meant them to be used.
"""

from __future__ import annotations

from fdg_jax.data.dataset import Dataset
from fdg_jax.data.download import Unavailable
from fdg_jax.data.sets import cifar10, digits
from fdg_jax.machine.stderr import say


def load(data_dir=None) -> Dataset:
    """Returns CIFAR-10, or digits with a `note`; whether there is a network is known within 5 s."""
    try:
        return cifar10.load(data_dir)
    except Unavailable as reason:
        if data_dir is not None:
            raise
        note = (
            f"NOT CIFAR-10 but scikit-learn's digits are used, and errors on digits say nothing about "
            f"CIFAR-10. The reason: {reason}"
        )
    say(note)
    return digits.load()._replace(note=note)
