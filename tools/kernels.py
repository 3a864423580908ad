"""Counts what one batch of the scan engine's window launches: `python -m tools.kernels [--list]`.

With JAX's packages for CUDA on PYTHONPATH (`jax-cuda12-plugin`, `jax-cuda12-pjrt`, `nvidia-cuda-nvcc-cu12`), the window
is compiled for an H100, without having one; otherwise for this CPU. XLA needs the last one's folder as
XLA_FLAGS=--xla_gpu_cuda_data_dir=FOLDER and its FOLDER/bin on PATH. No kernel is tuned then. The instructions in the
body of the compiled loop are counted by kind. For a GPU, XLA also says what the host launches.
"""

import argparse
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
  driver_version: "13.0.0" runtime_version: "12.9.0" compile_time_toolkit_version: "12.9.0" dnn_version: "9.10.0"
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } device_description_str: "NVIDIA H100 80GB HBM3"
"""
# What is no kernel of its own: names for parts of other results, and constants.
FREE = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "after-all", "opt-barrier", "partition-id"}
CONVOLUTION, PRODUCT, REDUCTION, REST = "convolution", "matrix product", "reduction", "elementwise"
# The first of these operations in a fusion names its kind.
NAMED = {
    "convolution": CONVOLUTION, "dot": PRODUCT, "reduce": REDUCTION, "reduce-window": REDUCTION,
    "dynamic-update-slice": "write into an array", "gather": "gather", "dynamic-slice": "read of an array",
    "concatenate": "concatenation", "transpose": "transposition", "copy": "transposition", "pad": "padding",
}  # fmt: skip
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\S.*?) ([a-z][\w\-]*)\((.*)$")
NESTED = re.compile(r"(?:calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)")


class Instruction(NamedTuple):
    """An instruction of a compiled program.

    nested: the computations that it names. rest: its operands and attributes.
    """

    name: str
    shape: str
    opcode: str
    nested: tuple[str, ...]
    rest: str

    @property
    def source(self) -> str:
        """Where it comes from in the traced program."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found[1] if found else ""


def computations(text: str) -> dict[str, list[Instruction]]:
    """The computations of a compiled program, as JAX prints it."""
    found, current = dict[str, list[Instruction]](), None
    for line in text.splitlines():
        head = re.match(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if head:
            current = found.setdefault(head[1], [])
        elif current is not None and (match := INSTRUCTION.match(line)):
            current.append(Instruction(match[1], match[2], match[3], tuple(NESTED.findall(match[4])), match[4]))
    return found


def kernels(program: Mapping[str, Sequence[Instruction]], body: str) -> Iterator[tuple[str, Instruction]]:
    """(kind, instruction) of every launch in a computation, those in its branches and loops included."""
    for each in program[body]:
        if each.opcode in ("while", "call", "conditional", "async-start"):
            for name in each.nested:
                yield from kernels(program, name)
        elif each.opcode == "fusion":
            inside = {part.opcode for name in each.nested for part in program[name]}
            yield next((kind for opcode, kind in NAMED.items() if opcode in inside), REST), each
        elif each.opcode == "custom-call":
            target = re.search(r'custom_call_target="([^"]*)"', each.rest)
            name = target[1] if target else "?"
            kind = CONVOLUTION if "conv" in name.lower() else PRODUCT if "blas" in name else f"call of {name}"
            yield kind, each
        elif each.opcode not in FREE:
            yield NAMED.get(each.opcode, each.opcode if each.opcode.startswith("rng") else REST), each


def of_batch(text: str) -> list[tuple[str, Instruction]]:
    """The launches of one turn of the largest loop of a compiled program."""
    program = computations(text)
    bodies = [re.search(r"body=%?([\w.\-]+)", each.rest) for part in program.values() for each in part
              if each.opcode == "while"]  # fmt: skip
    return max((list(kernels(program, body[1])) for body in bodies if body), key=len)


def counted(launches: Sequence[tuple[str, Any]]) -> dict[str, int]:
    """How many launches there are of each kind, the commonest first."""
    return dict(Counter(kind for kind, _ in launches).most_common())


def launched(indent: str, told: str) -> list[str]:
    """The launches in XLA's list of them, of those that are so far indented."""
    return re.findall(rf"(?m)^{indent}\d+: k\w+", told)


def compiled(program: Any, arguments: Sequence[Any]) -> str:
    """The program of these arguments, compiled for a GPU if JAX has its plugin, and else for the CPU."""
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    try:
        topology = topologies.get_topology_desc("one", "cuda", target_config=H100, topology="1x1x1")
        platform, device = "cuda", topology.devices[0]
    except NotImplementedError:
        platform, device = "cpu", jax.devices()[0]
    place = SingleDeviceSharding(device)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place), arguments)
    return program.trace(*shapes).lower(lowering_platforms=(platform,)).compile().as_text()


def window_of(engine: Any, images: Any, labels: Any, batch: int, windows: int = 4) -> str:
    """The compiled window of an engine on these examples."""
    import numpy as np

    rows = np.zeros((windows, batch), np.int32)
    return compiled(engine._window, (engine.run, np.asarray(images), np.asarray(labels), rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--K", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--default", action="store_true", help="XLA's own choice of what command buffers capture")
    parser.add_argument("--list", action="store_true", help="each launch that is no convolution, product or reduction")
    parser.add_argument("--hlo", type=Path, help="a file for the compiled program")
    chosen = parser.parse_args()
    from experiments.gpu.settings import CAPTURE
    from fdg_jax.machine.gpu_flags import REPEATABLE

    dump = Path(tempfile.mkdtemp())
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = " ".join([
        os.environ.get("XLA_FLAGS", ""), REPEATABLE, "" if chosen.default else CAPTURE, "--xla_gpu_autotune_level=0",
        f"--xla_dump_to={dump}", "--xla_dump_hlo_module_re=jit_window",
    ])  # fmt: skip
    import jax

    from fdg_jax.config import Config
    from fdg_jax.data.sets import synthetic
    from fdg_jax.training import job

    data = synthetic.load()
    options = Config(
        dataset="synthetic", model=chosen.model, K=chosen.K, beta=0.2, engine="scan", epochs=1, learning_rate=0.01,
        batch_size=chosen.batch_size,
    )  # fmt: skip
    engine = job.built(options, data, job.ALONE).pipeline.engine
    text = window_of(engine, data.train_images, data.train_labels, chosen.batch_size)
    if chosen.hlo:
        chosen.hlo.write_text(text, encoding="utf-8")
    launches = of_batch(text)
    print(f"{chosen.model}, K = {chosen.K}, batch {chosen.batch_size}, jax {jax.__version__}: {len(launches)} a batch")
    for kind, n in counted(launches).items():
        print(f"{n:6}  {kind}")
    if chosen.list:
        for kind, each in launches:
            if kind not in (CONVOLUTION, PRODUCT, REDUCTION):
                print(f"{kind:20} {each.name:40} {each.shape[:60]:60} {each.source}")
    for file in dump.glob("*thunk_sequence_after_thunk_passes.txt"):
        told = file.read_text(encoding="utf-8")
        loop = re.search(r"(?ms)^\d+: kWhile.*?body:\n(.*?)(?=^\d|\Z)", told)
        more = f", and {len(launched('    ', loop[1]))} more for each batch" if loop else ""
        print(f"a window: {len(launched('', told))} launches by the host{more}")
    shutil.rmtree(dump)


if __name__ == "__main__":
    main()
