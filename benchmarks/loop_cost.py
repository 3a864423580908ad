"""What a convolution costs inside a loop: four training steps as four calls, as a scan, and as an unrolled scan.

The delay-line engine wants many batches in one dispatch. On a CPU XLA does not use its fast convolution inside a
loop (jax issue 12868), so there the engine stays with a call a batch; this is the measurement behind that.
"""

import sys
import time
from collections.abc import Sequence
from statistics import median

import jax
import jax.numpy as jnp

from benchmarks.harness import report
from fdg_jax.errors import BadInput

STEPS = 4


def variants():
    """{name: function of (kernel, batches) that trains STEPS steps}; x is [batch, 32, 32, 16]."""

    def conv(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(kernel, x):
        return jnp.sum(jnp.tanh(conv(jnp.tanh(conv(x, kernel)), kernel)))

    def step(kernel, x):
        return kernel - 1e-3 * jax.grad(loss)(kernel, x)

    def scan(unroll):
        return jax.jit(lambda kernel, xs: jax.lax.scan(lambda k, x: (step(k, x), None), kernel, xs, unroll=unroll)[0])

    one = jax.jit(step)

    def calls(kernel, xs):
        for x in xs:
            kernel = one(kernel, x)
        return kernel

    return {"four calls": calls, "unrolled scan": scan(STEPS), "scan": scan(1)}


def measure(batch_size: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of each variant, the variants taking turns."""
    kernel, xs = jnp.full((3, 3, 16, 16), 0.01), jnp.ones((STEPS, batch_size, 32, 32, 16))
    runs = variants()
    timed: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run(kernel, xs))
            if turn:  # the first one compiles
                timed[name].append(1e3 * (time.perf_counter() - start))
    return {name: median(values) for name, values in timed.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = report.parser("loop_cost", __doc__)
    parser.add_argument("--batch-size", type=report.positive, default=64, help="images a batch (default 64)")
    parser.add_argument("--rounds", type=report.positive, default=5, help="turns of each variant (default 5)")
    try:
        given = parser.parse_args(arguments)
        report.check_json(given.json)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = measure(given.batch_size, given.rounds)
    over = {name: milliseconds / found["four calls"] for name, milliseconds in found.items()}
    rows = [
        {"benchmark": "loop_cost", "variant": name, "milliseconds": found[name], "over_calls": over[name]}
        for name in found
    ]
    lines = [[name, f"{found[name]:.0f}", f"{over[name]:.2f}"] for name in found]
    table = report.markdown(["variant", "ms", "over four calls"], lines)
    where = f"JAX {jax.__version__}, {jax.devices()[0].platform}, batch {given.batch_size}"
    report.emit(rows, f"{table}\n\n{where}, median of {given.rounds} turns.", given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
