"""Trains your own modules in one process, or in one process per stage, on one host or on several hosts.

    .venv/bin/python -m fdg_jax.launch --processes 2 -- examples/several_processes.py --K 2

Every process runs this program, joins the others before JAX makes any array, and then makes the same calls in the same
order with the same batches. Only one process prints.
"""

import argparse
import os
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import optax

import fdg_jax

parser = argparse.ArgumentParser()
parser.add_argument("--K", type=int, default=2)
parser.add_argument("--run-dir", type=Path, default=Path("runs/own"))
parser.add_argument("--resume", choices=["auto"])  # the launcher adds it when it starts again
parser.add_argument("--coordinator")
parser.add_argument("--processes", type=int, default=1)
parser.add_argument("--process-id", type=int, default=0)
parser.add_argument("--address", default="127.0.0.1")
given = parser.parse_args()
if given.coordinator:  # before anything makes an array
    fdg_jax.join_processes(given.coordinator, given.process_id, given.processes, given.K, given.address)
else:
    fdg_jax.emulate_cpu(given.K)


def loss(outputs, labels):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


rng = np.random.default_rng(0)  # every process is given the same batches
batches = [(x, (x.sum(1) > 0).astype(np.int32)) for x in rng.normal(size=(64, 32, 8)).astype(np.float32)]
stages = [nn.Sequential([nn.Dense(64), nn.tanh]) for _ in range(given.K - 1)]
pipeline = fdg_jax.Pipeline([*stages, nn.Dense(2)], loss, optax.sgd(0.1, momentum=0.9), beta=0.5)
pipeline.init(jax.random.key(0), batches[0])

file, done = given.run_dir / "state.npz", 0
if given.resume and file.exists():
    state = dict(np.load(file))
    done = int(state.pop("done"))
    pipeline.restore(state)
for batch in batches[done:]:
    pipeline.step(batch)
    done += 1
    if done % 40 == 0:
        state = pipeline.state()  # in every process: each gets the whole state
        if given.process_id == 0:
            given.run_dir.mkdir(parents=True, exist_ok=True)
            np.savez(file.with_name("new.npz"), done=done, **state)
            os.replace(file.with_name("new.npz"), file)  # so that there is always a whole one
pipeline.drain()
evaluation, staleness, sha256 = pipeline.evaluate(batches), pipeline.staleness, pipeline.parameters_sha256()
if given.process_id == 0:
    print(evaluation, staleness, sha256)
