"""What other programs call the flags of these commands, for "Did you mean": nobody remembers every spelling."""

from collections.abc import Iterable

from fdg_jax.errors import did_you_mean

# Another program's name -> ours. A name that means two things elsewhere (`--workers`) is left out.
OTHER_NAMES = {
    **dict.fromkeys(("lr", "lr0", "eta", "step-size", "base-lr", "initial-lr"), "learning-rate"),
    **dict.fromkeys(("b", "bs", "batch", "batchsize", "train-batch-size", "global-batch-size"), "batch-size"),
    **dict.fromkeys(("wd", "l2", "weight-penalty"), "weight-decay"),
    **dict.fromkeys(("e", "ep", "n-epochs", "num-epochs", "max-epochs", "nepochs"), "epochs"),
    **dict.fromkeys(("stages", "num-stages", "n-stages", "modules", "pp", "pipeline-parallel-size"), "K"),
    **dict.fromkeys(("depth", "layers", "num-layers", "arch", "architecture", "net", "network"), "model"),
    **dict.fromkeys(("data", "ds", "task"), "dataset"),
    **dict.fromkeys(("data-path", "data-root", "dataroot", "root", "datadir"), "data-dir"),
    **dict.fromkeys(("n-train", "num-train", "max-train-samples", "subset"), "train-size"),
    **dict.fromkeys(("o", "out", "output", "output-dir", "outdir", "out-dir", "save-dir", "log-dir"), "run-dir"),
    **dict.fromkeys(("max-steps", "num-steps", "n-steps", "iters", "iterations", "max-iters", "total-steps"), "steps"),
    **dict.fromkeys(("random-seed", "manual-seed", "rng-seed"), "seed"),
    **dict.fromkeys(("optim", "opt", "solver"), "optimizer"),
    **dict.fromkeys(("scheduler", "lr-scheduler", "lr-scheduler-type"), "lr-schedule"),
    **dict.fromkeys(("grad-clip", "max-grad-norm", "clip-grad", "gradient-clip-val"), "clip-norm"),
    **dict.fromkeys(("seq-len", "sequence-length", "context-length", "max-length"), "block-size"),
    **dict.fromkeys(("algorithm", "algo", "trainer"), "method"),
    **dict.fromkeys(("precision", "amp", "fp16", "bf16", "mixed-precision", "half"), "dtype"),
    **dict.fromkeys(("checkpointing", "gradient-checkpointing", "activation-checkpointing", "recompute"), "remat"),
    **dict.fromkeys(("microbatches", "chunks", "num-micro-batches", "n-microbatches"), "micro-batches"),
    **dict.fromkeys(("grad-accum", "gradient-accumulation-steps", "accumulation-steps", "accum"), "accumulate"),
    **dict.fromkeys(("continue", "restart", "resume-from", "resume-from-checkpoint", "auto-resume"), "resume"),
    **dict.fromkeys(("save-every", "save-steps", "save-interval", "checkpoint-interval"), "checkpoint-every"),
    **dict.fromkeys(("eval-every", "eval-steps", "eval-interval", "val-every", "test-every"), "evaluate-every"),
    **dict.fromkeys(("log-interval", "logging-steps", "print-every", "print-freq"), "log-every"),
    **dict.fromkeys(("save-total-limit", "keep-last", "max-to-keep"), "keep"),
    **dict.fromkeys(("q", "silent"), "quiet"),
    **dict.fromkeys(("wandb", "mlflow", "trackio", "tracker", "report-to", "logger"), "track"),
    **dict.fromkeys(("trace", "profiler"), "profile"),
    **dict.fromkeys(("n", "dryrun", "fast-dev-run", "estimate"), "dry-run"),
    **dict.fromkeys(("grid", "multirun", "search"), "sweep"),
    **dict.fromkeys(("c", "cfg", "conf", "config-file", "yaml", "toml"), "config"),
    **dict.fromkeys(("warmup-epochs", "lr-warmup", "warmup-iters"), "warmup-steps"),
    **dict.fromkeys(("tb", "tensorboard-dir"), "tensorboard"),
}


def hint(name: str, known: Iterable[str]) -> str:
    """Suggests known names for one that is not known, by what other programs call them, else by `did_you_mean`.

    Arguments:
        name: what was written, such as --lr or num_epochs.
        known: the names that exist, such as --learning-rate, or learning_rate.

    Returns: " Did you mean --learning-rate?", to follow another sentence; "" if no name is near.
    """
    known = list(known)
    meant = plain(OTHER_NAMES.get(plain(name), ""))
    found = [each for each in known if meant and plain(each) == meant]
    return f" Did you mean {found[0]}?" if found else did_you_mean(name, known)


def plain(name: str) -> str:
    """A name without what depends on where it is written: --Batch_Size -> batch-size."""
    return name.lstrip("-").replace("_", "-").lower()
