"""Which process computes which stage. It needs no JAX, so the launcher and the simulator ask it, too."""


def processes_of_stages(K: int, processes: int) -> list[int]:
    """The process, from 0, of each stage k = 1..K: as many stages in each as evenly as K allows."""
    return [k * processes // K for k in range(K)]
