"""Lists the peers and their options, and checks whether this machine has what they need. No JAX, no PyTorch."""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.harness import side_specs
from fdg_jax.errors import BadInput


class Peer(NamedTuple):
    """A peer.

    module: its file in this folder.
    needs: packages that the peer's interpreter must be able to import.
    processes: whether each worker has a process, on one core each; otherwise there is a single process.
    options: name -> default. A value has the default's type.
    gpu: whether it can train on a GPU as well.
    """

    summary: str
    module: str
    needs: str
    processes: bool
    options: Mapping[str, Any]
    gpu: bool = False


LAYOUT = {"layout": "channels-last"}
PEERS = {
    "torch": Peer("PyTorch, one process (graph: on a GPU, a step as one CUDA graph)", "torch_bp", "torch", False,
                  {"threads": 1, **LAYOUT, "graph": False, "precision": ""}, gpu=True),
    "torch-ddp": Peer("DistributedDataParallel, K processes, gloo", "torch_ddp", "torch", True, LAYOUT),
    "torch-pipeline": Peer("torch.distributed.pipelining, K processes, gloo", "torch_pipeline", "torch", True,
                           {"schedule": "1f1b", "micro_batches": 4, "split": "", **LAYOUT}),
    "jax-shard-map": Peer("one jax.jit over jax.shard_map, K devices", "jax_shard_map", "jax", False,
                          {"layers": "cured"}),
}  # fmt: skip
CHOICES = {"layers": ("cured", "plain"), "layout": ("channels-last", "contiguous"), "schedule": ("gpipe", "1f1b")}
WAY_OUT = "Install requirements-peers.txt into an environment and name its interpreter with --python."


def help() -> str:
    """Lines for a command's help."""
    lines = ["peers (--python names an interpreter that has them), and their options with defaults:"]
    for name, peer in PEERS.items():
        options = " ".join(f"{key}={shown(value)}" for key, value in peer.options.items())
        lines.append(f"  {name:15} {peer.summary}{options and ': '}{options}")
    return "\n".join(lines)


def shown(value: Any) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def parse(text: str, common: dict[str, Any], xla: str, split: str) -> side_specs.Side:
    """Reads a side: a peer, or a side of fdg_jax. Arguments as for `side_specs.parse`."""
    name, *words = text.split(":")
    if name not in PEERS:
        return side_specs.parse(text, common, xla, split)
    peer, device = PEERS[name], common.get("device", "cpu")
    if device == "gpu" and not peer.gpu:
        raise BadInput(f"side {text} trains on cores of a CPU. Leave this side out, or use --device cpu.")
    options = {**peer.options, **dict(option(text, peer, word) for word in words)}
    if device == "cpu" and not options.get("graph"):
        options.pop("graph", None)  # an option for a GPU
    K = common["K"] if peer.processes or peer.needs == "jax" else 1
    cut = options.pop("split", None)
    common = {name: common[name] for name in ("model", "batch_size", "dtype", "precision") if name in common}
    return check(
        side_specs.Side(
            name=text, method=name, K=K, cores=options.get("threads", K), engine=peer.module, device=device,
            split=cut if cut is None else cut or split, xla=xla if peer.needs == "jax" else "", options=options,
            precision=options.pop("precision", "") or common.pop("precision", "default"),
            worker=f"benchmarks.peers.{'ranks.Ranks' if peer.processes else f'{peer.module}.Trainer'}", **common,
        )
    )  # fmt: skip


def option(side: str, peer: Peer, word: str) -> tuple[str, Any]:
    key, equals, value = word.partition("=")
    if key not in peer.options or not equals:
        known = ", ".join(peer.options) or "no options"
        raise BadInput(f"side {side}: {word!r} is not an option of this peer. It has {known}, as NAME:option=value.")
    choices = CHOICES.get(key, side_specs.OPTIONS.get(key, ((),))[0])
    return key, side_specs.typed(side, key, value, peer.options[key], choices, least=1)


def check(side: side_specs.Side) -> side_specs.Side:
    """Returns the side. Raises BadInput if the peer cannot train its network or batch."""
    if PEERS[side.method].needs == "torch":
        network(side.model)
    if side.options.get("graph") and side.device != "gpu":
        raise BadInput(f"side {side.name}: a CUDA graph needs a GPU. Leave graph out, or use --device gpu.")
    if side.method in ("torch-ddp", "jax-shard-map") and side.batch_size % side.K:
        raise BadInput(f"side {side.name}: {side.K} replicas need equal parts. Use a multiple as --batch-size.")
    if side.method == "torch-pipeline":
        M = side.options["micro_batches"]
        if side.batch_size % M:
            raise BadInput(f"side {side.name}: {M} micro-batches do not divide {side.batch_size} images evenly.")
        if M < side.K or side.K < 2:
            raise BadInput(f"side {side.name}: nothing overlaps. Use --K 2 or more and at least as many micro-batches.")
    return side


def network(model: str) -> tuple[str, int, int]:
    """(family, n, k) of a network in torch_net: ("resnet", 3, 1) for resnet20, ("wrn", 2, 4) for wrn16_4."""
    depth, k, family, rest = 0, 0, "", 0
    if match := re.fullmatch(r"resnet(\d{1,4})", model):
        depth, k, family, rest = int(match[1]), 1, "resnet", 2
    elif match := re.fullmatch(r"wrn(\d{1,4})_(\d{1,2})", model):
        depth, k, family, rest = int(match[1]), int(match[2]), "wrn", 4
    if not k or depth <= rest or (depth - rest) % 6 or model == "resnet18":  # resnet18 is of another family
        raise BadInput(f"model {model}: the peers in PyTorch have resnet<6n+2> and wrn<6n+4>_<k> only.")
    return family, (depth - rest) // 6, k


def available(sides: Sequence[side_specs.Side], python: str) -> tuple[list[side_specs.Side], list[str]]:
    """Finds the sides that can run here.

    Arguments:
        python: the interpreter of the peers' environment; "": that of this process.

    Returns: the sides with their interpreters, and a sentence for each that cannot run.

    Raises:
        BadInput: the interpreter cannot be run, or the first side, with which all are compared, is missing.
    """
    kept, missing = list[side_specs.Side](), list[str]()
    for side in sides:
        torch = side.method in PEERS and PEERS[side.method].needs == "torch"
        if not torch or has(python or sys.executable, "torch"):
            kept.append(replace(side, interpreter=python if torch else ""))
            continue
        missing.append(f"Side {side.name} is skipped: {python or 'this interpreter'} has no PyTorch. {WAY_OUT}")
        if side is sides[0]:
            raise BadInput(f"{missing[0]} It is the first side, with which the others are compared.")
    return kept, missing


def has(python: str, package: str) -> bool:
    """Whether the interpreter `python` would find the package (which is not imported)."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    try:
        return subprocess.run([python, "-c", code], capture_output=True).returncode == 0
    except OSError as error:
        raise BadInput(f"--python {python} cannot be run ({error.strerror}). Name an interpreter.") from error
