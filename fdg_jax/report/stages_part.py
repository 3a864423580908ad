"""The stages of a run as a table: how the network was split, what each stage holds, and how late its gradients were."""

from collections.abc import Mapping
from html import escape
from typing import Any

from fdg_jax.report.page_style import table


def stage_table(config: dict[str, Any], summary: dict[str, Any]) -> str:
    """A table row for each stage. What is not known of any of them is left out."""
    known = config.get("stages")
    facts = known if isinstance(known, list) and all(isinstance(each, dict) for each in known) else []
    heads = ("stage", "blocks", "share", "parameters", "updates late", "updates made")
    heads += ("MB, predicted", "device")
    rows = []
    for k, device in enumerate(config["devices"], 1):
        of = facts[k - 1] if k <= len(facts) else {}
        late, made, size = (summary.get(n, [])[k - 1 : k] for n in ("staleness", "updates", "stage_parameters"))
        weights, *numbers = [whole(each[0]) if each else "" for each in (size or [of.get("parameters")], late, made)]
        rows.append([str(k), blocks(of), share(of), weights, *numbers, megabytes(of), device])
    kept = [c for c in range(len(heads)) if any(row[c] for row in rows)]
    return table([heads[c] for c in kept], [[escape(row[c]) or "–" for c in kept] for row in rows])


def whole(number: Any) -> str:
    """A whole number; "" of anything else."""
    return f"{number:,}" if isinstance(number, int) else ""


def blocks(of: Mapping[str, Any]) -> str:
    """The blocks of a stage, as its facts in config.json have them."""
    first, last = of.get("first_block"), of.get("last_block")
    return "" if first is None or last is None else f"{first}" if first == last else f"{first} to {last}"


def share(of: Mapping[str, Any]) -> str:
    """The part of the work that a stage has."""
    percent = of.get("share_percent")
    return f"{percent:.0f}% of the {of.get('share_of')}" if isinstance(percent, int | float) else ""


def megabytes(of: Mapping[str, Any]) -> str:
    """The predicted memory of a stage."""
    memory = of.get("memory_bytes")
    total = memory.get("total") if isinstance(memory, dict) else None
    return f"{total / 1e6:,.1f}" if isinstance(total, int | float) else ""
