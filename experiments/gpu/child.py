"""What runs in a process of its own because it starts JAX: `python -m experiments.gpu.child NAME JSON`.

The last line that it prints is its answer, as JSON.
"""

import json
import sys
from typing import Any


def answer(name: str, given: dict[str, Any]) -> Any:
    if name == "devices":
        from experiments.gpu.look import devices

        return devices()
    if name == "engines":
        from experiments.gpu.agree import engines

        return engines(**given)
    from experiments.gpu.look import memory

    assert name == "memory"
    return memory(**given)


if __name__ == "__main__":
    print(json.dumps(answer(sys.argv[1], json.loads(sys.argv[2]))))
