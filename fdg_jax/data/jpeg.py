"""Decodes one photograph, and crops it: at random for training, at the centre for testing.

The recipe is the usual one for ImageNet. A training image is a random part, resized and mirrored at random. A test
image is the centre. The paper says "random cropping, random horizontal flip" and cites ResNet and DenseNet, whose
recipes differ. This is DenseNet's recipe, with PyTorch's usual ranges of scale and aspect ratio. Resizing is Pillow's
bilinear, which averages over all pixels when it shrinks. Colours and brightness are not changed.
"""

import io
import math

import numpy as np

from fdg_jax.errors import Damaged

SCALES, SHAPES, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
TEST_CUT = 224 / 256  # of a test image's shorter side


def decode_image(content: bytes, where: str):
    """Decodes an image to RGB. Grey is repeated, CMYK is converted, and 16-bit values keep their upper 8 bits.

    Arguments:
        content: the bytes of the file.
        where: the name of the image in an error.

    Returns: a PIL.Image.

    Raises:
        Damaged: the image cannot be decoded.
    """
    from PIL import Image

    try:
        # One of ImageNet's files is a PNG with a JPEG's name; TFDS stores CIFAR as PNG or lossless WebP.
        image = Image.open(io.BytesIO(content), formats=("JPEG", "PNG", "WEBP"))
        if image.mode.startswith("I"):  # grey with 16 bits: `convert` would make everything above 255 white
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # as Pillow does with 16-bit colours
        return image.convert("RGB")
    except Exception as error:  # Pillow raises many kinds for damaged bytes
        fact = str(error).partition("<_io")[0].strip() or type(error).__name__  # without the address of our buffer
        raise Damaged(f"{where} can't be decoded ({len(content):,} bytes; {fact}). Replace the file.") from None


def decode_whole(content: bytes, where: str, shape: tuple[int, int, int]) -> np.ndarray:
    """Decodes an image of a data set whose images have one size: [H, W, C] uint8. Raises Damaged for another size."""
    image = np.asarray(decode_image(content, where))
    if image.shape != shape:
        raise Damaged(f"{where} is {image.shape}, but all other images are {shape}. Replace the file.")
    return image


def random_numbers(seed: int, epoch: int, i: int) -> np.ndarray:
    """The random numbers for image i in an epoch: [4 TRIES + 1] float64 in [0, 1).

    They come from the raw words of Philox, whose stream will not change. Philox starts fast, while starting a
    RandomState takes half a millisecond.
    """
    key, counter = np.array([seed, epoch], np.uint64), np.array([0, i, 0, 0], np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(4 * TRIES + 1)
    return (words >> np.uint64(11)) * 2.0**-53


def train_crop(image, side: int, random: np.ndarray) -> np.ndarray:
    """A random part of an image, resized and mirrored with probability 1/2.

    The part has 8 to 100% of the area and an aspect ratio of 3:4 to 4:3, whose logarithm is uniform. If none of ten
    tries fits into the image, the largest central part with such an aspect ratio is taken.

    Arguments:
        image: a PIL.Image.
        side: the side of the result, in pixels.
        random: what `random_numbers` returns.

    Returns: [side, side, 3] uint8.
    """
    from PIL import Image

    left, top, width, height = part(image.width, image.height, random[1:].reshape(TRIES, 4))
    image = image.resize((side, side), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
    return np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random[0] < 0.5 else image)


def part(width: int, height: int, random: np.ndarray) -> tuple[int, int, int, int]:
    """(left, top, width, height) of a random part of an image. random: [TRIES, 4]."""
    (small, large), (narrow, wide) = SCALES, (math.log(SHAPES[0]), math.log(SHAPES[1]))
    for scale, shape, x, y in random.tolist():
        area = width * height * (small + scale * (large - small))
        ratio = math.exp(narrow + shape * (wide - narrow))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(x * (width - w + 1)), int(y * (height - h + 1)), w, h
    w = min(width, max(1, round(height * SHAPES[1])))
    h = min(height, max(1, round(width / SHAPES[0])))
    return (width - w) // 2, (height - h) // 2, w, h


def test_crop(image, side: int) -> np.ndarray:
    """The central square with 224/256 of the shorter side, resized: [side, side, 3] uint8.

    This is "resize to 256, crop the central 224" in one step; the crop may be off by a fraction of a pixel.
    """
    from PIL import Image

    cut = min(image.size) * TEST_CUT
    left, top = ((length - cut) / 2 for length in image.size)
    return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, box=(left, top, left + cut, top + cut)))


test_crop.__test__ = False  # its name is not meant for pytest
