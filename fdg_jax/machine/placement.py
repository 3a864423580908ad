"""Which process computes which stage. The module needs no JAX, so that the launcher and the simulator can use it."""


def processes_of_stages(K: int, processes: int) -> list[int]:
    """The process, from 0, of each stage k = 1..K. Stages are shared out as evenly as K allows."""
    return [k * processes // K for k in range(K)]
