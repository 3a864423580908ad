"""How much of its devices a training uses: model FLOPs utilization (MFU, Chowdhery et al. 2022).

MFU is the model's FLOPs in a second, divided by the peak of all devices of the run. FLOPs that --remat repeats do not
count.
"""

from typing import Any

from fdg_jax import models
from fdg_jax.config import model_options
from fdg_jax.training.job import Job

# FLOPs a second of dense products in bfloat16 with float32 sums, by the makers' data sheets. float32 has no entry,
# because the precision of its products depends on JAX's settings.
PEAKS = {
    "NVIDIA A100-SXM4-40GB": 312e12, "NVIDIA A100-SXM4-80GB": 312e12, "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12, "TPU v4": 275e12, "TPU v5 lite": 197e12, "TPU v5": 459e12, "TPU v6 lite": 918e12,
}  # fmt: skip


def measured(job: Job, rate: float | None) -> dict[str, Any]:
    """The entries of summary.json on MFU, for a training on tokens; {} if the model has no formula for FLOPs.

    rate: tokens a second.

    Returns: flops_per_token; mfu_percent, None where rate or peak is not known; mfu_of, the peak in words.
    """
    o, data = job.options, job.dataset
    if data.unit != "tokens":
        return {}
    count = models.flops(o.model, data.classes, job.pipeline.parameter_count, data.per_example, **model_options(o))
    if count is None:
        return {}
    devices = {device for place in job.pipeline.places for device in place.devices}
    kind = next(iter(devices)).device_kind
    peak = PEAKS.get(kind) if o.dtype == "bfloat16" else None
    of = f"{len(devices)} x {peak / 1e12:g} TFLOP/s of {kind} in bfloat16" if peak else ""
    percent = round(100 * rate * count / (peak * len(devices)), 2) if peak and rate else None
    return {"flops_per_token": count, "mfu_percent": percent, "mfu_of": of}


def words(summary: dict[str, Any]) -> str:
    """`, 4.9 MFLOP a token, MFU 38.2% of 1 x 989 TFLOP/s of ...`; "" without a formula."""
    if "flops_per_token" not in summary:
        return ""
    percent = summary["mfu_percent"]
    used = "" if percent is None else f", MFU {percent:.1f}% of {summary['mfu_of']}"
    return f", {summary['flops_per_token'] / 1e6:,.1f} MFLOP a token{used}"
