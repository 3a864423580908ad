"""A training in several processes, for tests/test_processes.py: `python process_child.py OUT OPTIONS FLAGS`.

OPTIONS is JSON: of `Pipeline`, and K, the number of stages. "resume": the file of a state to go on from.
"of process 1": options that only that process has. "weighted": examples have weights, and the loss has a metric.
"mixed": preprocess makes inputs and labels of both, and the loss draws; evaluation has such labels, too.
"ema": the average is evaluated too, and the learning rate is set in the middle.
Each process writes what it sees to OUT/<process>.json; process 0 also writes the state in the middle to OUT/state.npz.
"R": devices of each stage.
FLAGS are those that fdg_jax.launch adds; without them it is a training in one process.
"""

import argparse
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fdg_jax
from fdg_jax.transport.devices import for_each, stage_devices

MIDDLE, RAGGED = 6, 7  # batches before the state is taken; examples of batch 5, others have 16


def weighted_loss(outputs, labels):
    each = optax.softmax_cross_entropy_with_integer_labels(outputs, labels.labels)
    return labels.mean(each), {"largest": jnp.max(outputs)}


def mix(x, y, step):
    """Shares of classes [batch, 5] of each example and the one opposite; inputs likewise."""
    shares = jax.nn.one_hot(y, 5)
    return x + x[::-1] / (step + 1), (shares + shares[::-1]) / 2


def drawing_loss(outputs, labels, key):
    return optax.softmax_cross_entropy(outputs + jax.random.normal(key, outputs.shape), labels).mean()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("options", type=json.loads)
    parser.add_argument("--coordinator")
    parser.add_argument("--process-id", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    options, process = given.options, given.process_id
    of_one = options.pop("of process 1", {})
    options |= of_one if process == 1 else {}
    K, resume, weighted = options.pop("K", 3), options.pop("resume", None), options.pop("weighted", False)
    R = for_each(options.pop("R", 1), K)
    mixed = options.pop("mixed", False)
    jax.config.update("jax_platforms", "cpu")
    if given.processes > 1:
        fdg_jax.join_processes(given.coordinator, process, given.processes, K, R=R)
    else:
        fdg_jax.emulate_cpu(sum(R))
    import small

    found = iter(stage_devices(K, R=R)[0])
    options |= {"devices": [[next(found) for _ in range(r)] for r in R]} if max(R) > 1 else {}

    kind = small.CurrentPart if options.get("weights") == "current" else small.Part
    data = small.batches(9)
    data[4] = tuple(array[:RAGGED] for array in data[4])
    if weighted:
        data = [(x, fdg_jax.Weighted(y, np.arange(len(y)) % 3)) for x, y in data]
    loss = weighted_loss if weighted else drawing_loss if mixed else small.cross_entropy
    options |= {"preprocess": mix} if mixed else {}
    optimizer = optax.inject_hyperparams(optax.sgd)(0.1, momentum=0.9) if "ema" in options else small.recipe()
    pipeline = fdg_jax.Pipeline(small.parts(K, kind), loss, optimizer, **options)
    pipeline.init(jax.random.key(0), data[0])
    if resume:
        pipeline.restore(dict(np.load(resume)))
    else:
        for batch in data[:MIDDLE]:
            pipeline.step(batch)
    state = pipeline.state()
    if process == 0:
        np.savez(given.out / "state.npz", **state)
    if "ema" in options:
        pipeline.set_hyperparameters(learning_rate=0.02)
    for batch in data[MIDDLE:]:
        pipeline.step(batch)
    tests = [(x, mix(x, y, 0)[1]) if mixed else (x, y) for x, y in (data[4], data[0])]
    evaluation = [pipeline.evaluate(tests, key=jax.random.key(1) if mixed else None)]
    if "ema" in options:
        evaluation.append(pipeline.evaluate(tests, variables=pipeline.ema))
    predicted = pipeline.predict(data[0][0])
    lost = np.full_like(data[0][0], np.nan), data[0][1]
    first_nonfinite = [pipeline.first_nonfinite(batch) for batch in (data[0], lost)] if K == 4 else []  # it compiles
    pipeline.drain()
    seen = {
        "local stages": [k for k, device in enumerate(pipeline.devices, 1) if device.process_index == process],
        "losses": list(pipeline.losses(wait=True)),
        "evaluation": evaluation,
        "predicted": predicted.tolist(),
        "first_nonfinite": first_nonfinite,
        "staleness": pipeline.staleness,
        "updates": pipeline.updates,
        "parameters": pipeline.parameter_count,
        "parameters_sha256": pipeline.parameters_sha256(),
        "state_sha256": pipeline.state_sha256(),
    }
    (given.out / f"{process}.json").write_text(json.dumps(seen))
    if given.processes > 1:
        jax.distributed.shutdown()


if __name__ == "__main__":
    sys.exit(main())
