"""Compares the ImageNet loader's images per second with the images per second that a network trains on the same cores.

    .venv/bin/python -m benchmarks.loader --model resnet101_imagenet --workers 0 1 2

The files are JPEGs of ImageNet's usual size. They are crops of the two photographs in scikit-learn: 40 to 100% of the
area, at 500x375 pixels and quality 90. They are read, decoded, cropped at random, resized to 224x224 and mirrored. They
are in the system's file cache, so the numbers do not include the cost of a slow disk.

Demand is the images/s of forward, backward and update of the network in one stage (`bp`, K=1) on one core, or on the
accelerator if there is one. A loader with w workers has w cores; without workers it has the trainer's core. In every
turn each side has a window, while the others sleep or do not exist. "Over demand" is the loader's speed divided by the
demand in the same turn, as the median of all turns. At 1.0 the loader just keeps up.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import paper_speeds, report, side_specs, turns
from fdg_jax import models
from fdg_jax.data.stream import AHEAD, Loader, Stream, TrainBatches
from fdg_jax.data.streams import imagenet
from fdg_jax.errors import BadInput
from fdg_jax.machine.facts import pinned

PHOTO, QUALITY, CLASSES = (500, 375), 90, 10
LOADER = "loader, workers="
PAPER = max(float(speed.images_per_second) for speed in paper_speeds.SPEEDS if speed.network == "ResNet-101")


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


def demand(source: Stream, given: report.Given) -> Callable[[], float]:
    """Makes a function that trains for a window and returns images/s. JAX's threads get the caller's core."""
    import jax

    import fdg_jax
    from fdg_jax import split
    from fdg_jax.data.augment import train_transform
    from fdg_jax.recipe import paper_sgd
    from fdg_jax.training.job import cross_entropy

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


def supply(source: Stream, workers: int, given: report.Given) -> float:
    """Images/s of a loader, after its initial stock is used up. It gets the caller's cores."""
    with Loader(TrainBatches(source, given.batch_size, seed=0), workers=workers) as loader:
        for _ in range((AHEAD + 2) * max(1, workers)):
            next(loader)
        images, start = 0, time.perf_counter()
        while images == 0 or time.perf_counter() - start < given.seconds:
            images += sum(len(next(loader)[1]) for _ in range(max(1, workers)))
        return images / (time.perf_counter() - start)


def measure(source: Stream, cores: Sequence[int], given: report.Given) -> dict[str, list[float]]:
    """{side: images/s of each turn}; the first side is the demand."""
    sides: dict[str, Callable[[], float]] = {given.model: demand(source, given)}
    sides |= {f"{LOADER}{workers}": partial(supply, source, workers, given) for workers in given.workers}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for turn, name in turns.back_and_forth(given.windows, list(sides)):
        with pinned(cores[: cores_of(name)]):
            found[name].append(sides[name]())
        report.say(f"turn {turn + 1} of {given.windows}, {name}: {found[name][-1]:.1f} images/s")
    return found


def cores_of(side: str) -> int:
    return max(1, int(side.removeprefix(LOADER))) if side.startswith(LOADER) else 1


COLUMNS: dict[str, report.Cell] = {
    "side": "`{side}`", "cores": "{cores}", "images/s": report.spread_of("images_per_second_windows", 2),
    "over demand": report.spread_of("ratio_windows", 1),
}  # fmt: skip


def table(made: report.Rows, given: report.Given) -> str:
    one = made[0]
    about = f"JPEGs of {one['file_bytes'] / 1000:.0f} kB as images 224x224, batch {given.batch_size}, sides in turns. "
    about += f"Cells: median (least to most) of {given.windows} windows of {given.seconds:g} s. On {one['device']}; "
    about += f"{report.place(one)}, commit {one['commit']}."
    if each := max((row["images_per_second"] / row["cores"] for row in made[1:]), default=0.0):
        about += f" A core decodes {each:.0f} images/s: the paper's fastest ResNet-101, {PAPER} images/s on four GPUs, "
        about += f"needs {math.ceil(PAPER / each)} such cores."
    return report.table(COLUMNS, made, about)


def parser() -> report.Parser:
    made = report.parser("loader", __doc__, model="resnet101_imagenet", batch_size=8, windows=4, seconds=8.0)
    made.add_argument("--workers", type=int, nargs="+", help="processes of each loader (default 0 1 2, as cores allow)")
    made.add_argument("--images", type=report.positive, default=200, help="number of image files (default 200)")
    return made


def results(given: report.Given) -> list[dict[str, Any]]:
    cores = side_specs.cores_available()
    if given.workers is None:
        given.workers = [workers for workers in (0, 1, 2) if workers <= len(cores)]
    if wrong := [workers for workers in given.workers if not 0 <= workers <= len(cores)]:
        raise BadInput(f"--workers {wrong[0]}: there are {len(cores)} cores, one for each. Use 0 to {len(cores)}.")
    if given.images < given.batch_size:
        raise BadInput(f"--images {given.images}: a batch needs {given.batch_size}. Use as many or more.")
    models.blocks(given.model, CLASSES)  # refuses an unknown model
    with tempfile.TemporaryDirectory() as folder, pinned(cores[:1]):  # before JAX makes its threads
        size = make_images(Path(folder), given.images)
        train, test, classes = imagenet.of_folders(Path(folder))
        source = Stream("photographs", train, test, classes, imagenet.SIDE, imagenet.MEAN, imagenet.STD)
        found = measure(source, cores, given)
    import jax

    first, about = found[given.model], {"batch_size": given.batch_size, "file_bytes": round(size)}
    about["device"] = jax.devices()[0].platform
    return [{"side": side, "cores": cores_of(side), **report.speeds(speeds, first, 3), **about}
            for side, speeds in found.items()]  # fmt: skip


main = report.run(__name__, parser, results, table)
