"""python ray_launch.py 2 -m fdg_jax.experiments.cifar --K 2 ..., on any host of a Ray cluster.

Ray only starts the processes; their messages do not go through Ray. Stop a run by a signal to its processes: Ray would
kill them without a checkpoint. Tried with Ray 2.60 on one machine.
"""

import socket
import subprocess
import sys

import ray  # pyright: ignore[reportMissingImports]
from ray.util.placement_group import placement_group  # pyright: ignore[reportMissingImports]
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # pyright: ignore[reportMissingImports]

PROCESSES, WORDS = int(sys.argv[1]), sys.argv[2:]
EACH = {"CPU": 2}  # with a GPU: {"CPU": 2, "GPU": 1}, and num_gpus=1 below


def meeting():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"


def train(coordinator, process):
    which = ["--coordinator", coordinator, "--processes", str(PROCESSES), "--process-id", str(process)]
    where = ["--address", ray.util.get_node_ip_address()]
    return subprocess.run([sys.executable, *WORDS, *which, *where]).returncode


def run(function, bundle, *arguments):
    there = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    return ray.remote(num_cpus=2, max_retries=0, scheduling_strategy=there)(function).remote(*arguments)


ray.init()
group = placement_group([EACH] * PROCESSES, strategy="SPREAD")  # all at once, or none
ray.get(group.ready())
coordinator = ray.get(run(meeting, 0))  # process 0 is in the same bundle, so on the same host
codes = ray.get([run(train, process, coordinator, process) for process in range(PROCESSES)])
sys.exit(max(codes, key=abs))
