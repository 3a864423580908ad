"""Small files in the true formats of Tiny-ImageNet and ImageNet, written without the code under test.

The images are smooth, so that JPEG changes them little, and all different, so that a swapped or lost one shows.
"""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from fdg_jax.data import jpeg
from fdg_jax.data.sets.tiny_imagenet import TINY
from tests.cifar_files import example, write_prepared

WNIDS = ("n01751748", "n02105855", "n09193705")  # the classes of the first validation images, which TFDS lists
SMALL = TINY._replace(train=12, test=6, classes=3)


def photo(number: int, size: tuple[int, int] = (64, 64), mode: str = "RGB") -> bytes:
    """A JPEG file of that width and height."""
    coarse = np.random.RandomState(number).randint(0, 256, (4, 4, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BILINEAR).convert(mode).save(file, "JPEG", quality=90)
    return file.getvalue()


def pixels(content: bytes) -> np.ndarray:
    """[H, W, 3] as Pillow decodes it."""
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def write(path: Path, content: bytes) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return content


def tiny_imagenet(data_dir: Path) -> dict[str, tuple[bytes, str]]:
    """`<data_dir>/tiny-imagenet-200` as unpacked; {file name: (content, class)}. Some images are grey, as there."""
    folder, made = data_dir / "tiny-imagenet-200", {}
    for c, wnid in enumerate(WNIDS):
        boxes = []
        for i in range(SMALL.train // SMALL.classes):
            name = f"{wnid}_{i}.JPEG"
            content = photo(100 * c + i, mode="L" if i == 0 else "RGB")
            made[name] = write(folder / "train" / wnid / "images" / name, content), wnid
            boxes.append(f"{name}\t0\t0\t62\t62\n")
        write(folder / "train" / wnid / f"{wnid}_boxes.txt", "".join(boxes).encode())
    lines = []
    for i in range(SMALL.test):
        name, wnid = f"val_{i}.JPEG", WNIDS[(i + 1) % 3]
        made[name] = write(folder / "val" / "images" / name, photo(1000 + i)), wnid
        lines.append(f"{name}\t{wnid}\t0\t32\t44\t62\n")
    write(folder / "val" / "val_annotations.txt", "".join(lines).encode())
    write(folder / "test" / "images" / "test_0.JPEG", photo(2000))  # without labels, and not used
    write(folder / "wnids.txt", "\n".join(reversed(WNIDS)).encode())  # not sorted, as there
    write(folder / "words.txt", b"n00001740\tentity\n")
    return made


def imagenet(folder: Path, each: int = 4, val: int = 6, layout: str = "folders") -> dict[str, tuple[bytes, str]]:
    """`train/` and `val/` with photographs of several sizes; {file name: (content, class)}.

    layout: of val/. "folders", a folder a class; "flat", as its archive unpacks; "kaggle", flat, with Kaggle's list.
    """
    made, lines = {}, ["ImageId,PredictionString"]
    for c, wnid in enumerate(WNIDS):
        for i in range(each):
            name = f"{wnid}_{10 * i + c}.JPEG"
            content = photo(100 * c + i, (80 + 4 * i, 60 + 8 * c))
            made[name] = write(folder / "train" / wnid / name, content), wnid
    for i in range(1, val + 1):
        # The classes of the true images 1, 2, ..., as TFDS lists them, where the others begin to be needed.
        wnid = {1: "n01751748", 2: "n09193705", 3: "n02105855"}.get(i, WNIDS[i % 3])
        name = f"ILSVRC2012_val_{i:08d}.JPEG"
        place = folder / "val" / wnid if layout == "folders" else folder / "val"
        made[name] = write(place / name, photo(1000 + i, (70, 90))), wnid
        lines.append(f"{name[:-5]},{wnid} 85 1 499 272 {wnid} 1 2 3 4 ")
    if layout == "kaggle":
        write(folder / "LOC_val_solution.csv", "\n".join(lines).encode())
    return made


FEATURES = {  # as TFDS writes them for imagenet2012
    "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
    "featuresDict": {
        "features": {
            "file_name": {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}},
            "image": {
                "pythonClassName": "tensorflow_datasets.core.features.image_feature.Image",
                "image": {"dtype": "uint8", "encodingFormat": "jpeg", "shape": {"dimensions": ["-1", "-1", "3"]}},
            },
            "label": {
                "pythonClassName": "tensorflow_datasets.core.features.class_label_feature.ClassLabel",
                "classLabel": {"numClasses": str(len(WNIDS))},
            },
        }
    },
}


def imagenet_prepared(data_dir: Path, train: int = 12, val: int = 6, shards: int = 3) -> tuple[Path, dict]:
    """`<data_dir>/imagenet2012/5.1.0` as TFDS prepares it; its path and {split: [(content, label), ...]}."""
    directory = data_dir / "imagenet2012" / "5.1.0"
    splits = {"train": [(photo(i, (80, 60)), i % 3) for i in range(train)],
              "validation": [(photo(1000 + i, (70, 90)), i % 3) for i in range(val)]}  # fmt: skip
    records = {
        split: [example(*one, f"{split}_{i}.JPEG") for i, one in enumerate(examples)]
        for split, examples in splits.items()
    }
    write_prepared(directory, "tensorflow_datasets.datasets.imagenet2012", records, FEATURES, WNIDS, shards)
    return directory, splits


def decoded(images, i: int) -> np.ndarray:
    """Image i of a stream, whole."""
    content, _, where = images.read(i)
    return np.asarray(jpeg.decode_image(content, where))
