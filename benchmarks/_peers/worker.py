"""The process of a peer, or of one of its ranks: as `benchmarks._worker`, with somebody else's engine.

Which module trains is the side's `engine`. A peer of several processes has a rank in the environment of each; the
one without starts them.
"""

import os
import sys
from importlib import import_module

from benchmarks._peers.ranks import RANK, Ranks, pin
from benchmarks._peers.sides import PEERS
from benchmarks._serve import Trainer, serve
from benchmarks._sides import Side


def trainer(side: Side) -> Trainer:
    if PEERS[side.method].processes:
        if RANK not in os.environ:
            return Ranks(side)
        pin()
    return import_module(f"benchmarks._peers.{side.engine}").Trainer(side)


if __name__ == "__main__":
    sys.exit(serve(trainer))
