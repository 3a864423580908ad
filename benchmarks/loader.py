"""Images per second of the ImageNet loader, against the speed at which a network trains on the same cores.

    .venv/bin/python -m benchmarks.loader --model resnet101_imagenet --workers 0 1 2

The files are JPEGs of ImageNet's usual size, made from the two photographs in scikit-learn: crops of 40 to 100% of the
area, at 500x375 pixels and quality 90. They are read, decoded, cropped at random, resized to
224x224 and mirrored. They are in the system's file cache, so the numbers do not include the cost of a slow disk.

Demand is the images/s of forward, backward and update of the network in one stage (`bp`, K=1) on one core, or on the
accelerator if there is one. A loader with w workers has w cores; without workers it has the trainer's. In every turn
each side has a window, while the others sleep or do not exist; "over demand" is the median of the ratios within a turn.
At 1.0 the loader just keeps up.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import report, side_specs
from benchmarks.harness.paper_speeds import SPEEDS
from fdg_jax.data.stream import AHEAD, Loader, Stream, TrainBatches
from fdg_jax.data.streams import imagenet
from fdg_jax.errors import BadInput

PHOTO, QUALITY, CLASSES = (500, 375), 90, 10
LOADER = "loader, workers="
PAPER = max(float(speed.images_per_second) for speed in SPEEDS if speed.network == "ResNet-101")


def make_images(folder: Path, count: int) -> float:
    """Writes `train/` and `val/` with so many training images. Returns the mean size of a file in bytes."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    random, sizes = np.random.RandomState(0), []
    for i in range(count + CLASSES):
        photo = photos[i % 2]
        share = math.sqrt(random.uniform(0.4, 1.0))
        w, h = (share * length for length in photo.size)
        x, y = random.uniform(0, photo.width - w), random.uniform(0, photo.height - h)
        split = "train" if i < count else "val"
        path = folder / split / f"n{i % CLASSES:08d}" / f"{i}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo.resize(PHOTO, Image.Resampling.BICUBIC, box=(x, y, x + w, y + h)).save(path, "JPEG", quality=QUALITY)
        sizes.append(path.stat().st_size)
    return statistics.mean(sizes)


def stream(folder: Path) -> Stream:
    """The data set as `--dataset imagenet` makes it, without the notice that it is not all of ImageNet."""
    train, test, classes = imagenet.of_folders(folder)
    return Stream("photographs", train, test, classes, (imagenet.SIDE, imagenet.SIDE, 3), imagenet.MEAN, imagenet.STD)


def demand(source: Stream, given: argparse.Namespace) -> Callable[[], float]:
    """Makes a function that trains for a window and returns images/s. JAX's threads get the caller's core."""
    import jax

    import fdg_jax
    from fdg_jax import models, split
    from fdg_jax.data.augment import train_transform
    from fdg_jax.recipe import paper_sgd
    from fdg_jax.training.setup import cross_entropy

    stages = split.stages(models.blocks(given.model, source.classes), ())
    transform = train_transform(source, 0)
    pipeline = fdg_jax.Pipeline(stages, cross_entropy, paper_sgd(0.01), method="bp", preprocess=transform)
    batch = TrainBatches(source, given.batch_size, seed=0)[0]
    pipeline.init(jax.random.key(0), batch)

    def train(batches: int) -> float:
        start = time.perf_counter()
        for _ in range(batches):
            pipeline.step(batch)
        pipeline.wait()
        return time.perf_counter() - start

    train(2)  # compiles
    batches = max(1, math.ceil(given.seconds / train(1)))
    return lambda: batches * given.batch_size / train(batches)


def supply(source: Stream, workers: int, given: argparse.Namespace) -> float:
    """Images/s of a loader, after its initial stock is used up. It gets the caller's cores."""
    with Loader(TrainBatches(source, given.batch_size, seed=0), workers=workers) as loader:
        for _ in range((AHEAD + 2) * max(1, workers)):
            next(loader)
        images, start = 0, time.perf_counter()
        while images == 0 or time.perf_counter() - start < given.seconds:
            images += sum(len(next(loader)[1]) for _ in range(max(1, workers)))
        return images / (time.perf_counter() - start)


def measure(source: Stream, cores: Sequence[int], given: argparse.Namespace) -> dict[str, list[float]]:
    """{side: images/s of each turn}; the first side is the demand."""
    os.sched_setaffinity(0, cores[:1])
    train = demand(source, given)
    sides: dict[str, Callable[[], float]] = {given.model: train}
    for workers in given.workers:
        sides[f"{LOADER}{workers}"] = lambda workers=workers: supply(source, workers, given)
    found: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(given.windows):
        for name in list(sides) if turn % 2 == 0 else reversed(list(sides)):
            os.sched_setaffinity(0, cores[: cores_of(name)])
            found[name].append(sides[name]())
            os.sched_setaffinity(0, cores[:1])
        speeds = "  ".join(f"{name} {values[-1]:.1f}" for name, values in found.items())
        print(f"turn {turn + 1} of {given.windows}, images/s: {speeds}", file=sys.stderr, flush=True)
    return found


def cores_of(side: str) -> int:
    return max(1, int(side.removeprefix(LOADER))) if side.startswith(LOADER) else 1


def rows(found: dict[str, list[float]], given: argparse.Namespace, size: float) -> list[dict[str, Any]]:
    import jax

    first, device = next(iter(found.values())), jax.devices()[0].platform
    return [
        {
            "benchmark": "loader",
            "side": side,
            "cores": cores_of(side),
            "batch_size": given.batch_size,
            "images_per_second": round(statistics.median(values), 2),
            "images_per_second_windows": [round(value, 2) for value in values],
            "over_demand": round(statistics.median(a / b for a, b in zip(values, first, strict=True)), 3),
            "over_demand_windows": [round(a / b, 3) for a, b in zip(values, first, strict=True)],
            "file_bytes": round(size),
            "device": device,
            **report.machine(),
        }
        for side, values in found.items()
    ]


def table(made: Sequence[dict[str, Any]], given: argparse.Namespace) -> str:
    spread = report.spread
    body = [
        [f"`{row['side']}`", str(row["cores"]), spread(row["images_per_second_windows"], 2),
         spread(row["over_demand_windows"], 1)]
        for row in made
    ]  # fmt: skip
    about = (
        f"Images 224x224 of JPEGs of {made[0]['file_bytes'] / 1000:.0f} kB, batch {given.batch_size}, {given.windows} "
        f"windows of {given.seconds:g} s a side in turns: median (least to most). Trained on {made[0]['device']}; "
        f"{made[0]['cpu']}, {made[0]['machine_cores']} cores, commit {made[0]['commit']}."
    )
    most = max((row for row in made[1:]), key=lambda row: row["images_per_second"] / row["cores"], default=None)
    if most is not None:
        each = most["images_per_second"] / most["cores"]
        about += (
            f" A core decodes {each:.0f} images/s: the paper's fastest ResNet-101, {PAPER} images/s on four GPUs, "
            f"needs {math.ceil(PAPER / each)} such cores."
        )
    head = ["side", "cores", "images/s", "over demand"]
    return f"{report.markdown(head, body)}\n\n{about}"


def parser() -> argparse.ArgumentParser:
    made = report.parser("loader", __doc__)
    add = made.add_argument
    add("--model", default="resnet101_imagenet", help="the model that is trained (default resnet101_imagenet)")
    add("--batch-size", type=report.positive, default=8, help="images a batch (default 8)")
    add("--workers", type=int, nargs="+", default=None, help="processes of each loader (default 0 1 2, as cores allow)")
    add("--images", type=report.positive, default=200, help="number of image files (default 200)")
    add("--windows", type=report.positive, default=4, help="turns a side (default 4)")
    add("--seconds", type=float, default=8.0, help="length of a window (default 8)")
    return made


def check(given: argparse.Namespace, cores: int) -> None:
    from fdg_jax import models

    if not given.seconds > 0:
        raise BadInput(f"--seconds {given.seconds}: use a positive number.")
    if given.workers is None:
        given.workers = [workers for workers in (0, 1, 2) if workers <= cores]
    for workers in given.workers:
        if not 0 <= workers <= cores:
            raise BadInput(f"--workers {workers}: there are {cores} cores, one for each. Use 0 to {cores}.")
    if given.images < given.batch_size:
        raise BadInput(f"--images {given.images}: a batch has {given.batch_size}. Use as many or more.")
    models.blocks(given.model, CLASSES)
    report.check_json(given.json)


def main(arguments: list[str] | None = None) -> int:
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    try:
        given = parser().parse_args(arguments)
        cores = side_specs.cores_available()
        check(given, len(cores))
        os.sched_setaffinity(0, cores[:1])  # before JAX makes its threads
        with tempfile.TemporaryDirectory() as folder:
            size = make_images(Path(folder), given.images)
            found = measure(stream(Path(folder)), cores, given)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        if before:
            os.sched_setaffinity(0, before)
    made = rows(found, given, size)
    report.emit(made, table(made, given), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
