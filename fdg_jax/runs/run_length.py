"""How many batches a run has: in an epoch, in all its epochs, and until it ends."""

import math
from typing import NamedTuple


class RunLength(NamedTuple):
    """In batches. An epoch's last, smaller batch counts as one."""

    per_epoch: int
    all_epochs: int  # the learning-rate schedule follows this
    end: int  # after which the run ends: --steps may end it earlier


def run_length(examples: int, batch_size: int, epochs: int, steps: int | None = None) -> RunLength:
    """The length of a run.

    Arguments:
        examples: of the training set.
        steps: batches after which the run ends at the latest; None: no limit.
    """
    per_epoch = math.ceil(examples / batch_size)
    all_epochs = epochs * per_epoch
    return RunLength(per_epoch, all_epochs, min(all_epochs, steps or all_epochs))
