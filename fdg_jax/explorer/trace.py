"""Writes a schedule as a trace for ui.perfetto.dev: a track for each stage, and an arrow from a batch's F to its B."""

from collections.abc import Sequence
from typing import Any

from fdg_jax.explorer.timeline import Shown

MICROSECONDS = 1000  # of a forward pass in the trace


def trace(shown: Sequence[Shown], title: str, K: int) -> dict[str, Any]:
    """Makes an object in the Trace Event Format.

    Arguments:
        shown: the operations.
        title: the name of the process.
        K: number of stages.

    Returns: the object, for json.dump. It also has a counter of updates for each stage.
    """
    made: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": title}}]
    for k in range(1, K + 1):
        made.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": k, "args": {"name": f"stage {k}"}})
        made.append({"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": k, "args": {"sort_index": k}})
    forward = {(op.k, op.batch): op for op in shown if op.kind == "F"}
    for op in shown:
        begin, end = float(op.begin * MICROSECONDS), float(op.end * MICROSECONDS)
        common = {"pid": 1, "tid": op.k}
        about = {"batch": op.batch, "weights": op.version}
        if op.kind == "B":
            about |= {"used weights": op.used, "updates in between": op.version - op.used}
        name = f"{op.kind}{op.batch}"
        made.append({"ph": "X", "name": name, "cat": op.kind, "ts": begin, "dur": end - begin, **common, "args": about})
        if op.kind == "B":
            of = forward[op.k, op.batch]
            arrow = {"name": "the same batch", "cat": "batch", "id": len(made), **common}
            made.append({"ph": "s", "ts": float((of.begin + of.end) / 2 * MICROSECONDS), **arrow})
            made.append({"ph": "f", "bp": "e", "ts": begin, **arrow})
        if op.updates:
            counter = {"ph": "C", "name": f"updates of stage {op.k}", "pid": 1, "tid": op.k}
            made.append({**counter, "ts": end, "args": {"updates": op.version + 1}})
    about = "Times are in forward passes of a stage, 1 ms each."
    return {"traceEvents": made, "displayTimeUnit": "ms", "otherData": {"about": about}}
