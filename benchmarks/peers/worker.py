"""The process of a peer, or of one of its ranks: like `benchmarks.harness.bench_worker`, with another library's engine.

The side's `engine` is the module that trains. If the peer has several processes, each finds its rank in the
environment; a process without a rank starts the others.
"""

import os
import sys
from importlib import import_module

from benchmarks.harness.ranks import RANK, pin
from benchmarks.harness.serving import Trainer, serve
from benchmarks.harness.side_specs import Side
from benchmarks.peers.ranks import Ranks
from benchmarks.peers.sides import PEERS


def trainer(side: Side) -> Trainer:
    if PEERS[side.method].processes:
        if RANK not in os.environ:
            return Ranks(side)
        pin()
    return import_module(f"benchmarks.peers.{side.engine}").Trainer(side)


if __name__ == "__main__":
    sys.exit(serve(trainer))
