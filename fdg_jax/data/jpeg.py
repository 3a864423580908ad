"""One photograph: from the bytes of a file to an array, whole, cropped at random for training, or centred for a test.

The recipe is the usual one for ImageNet (a random part of the image, resized; a random mirroring; for a test the
centre). The paper says "random cropping, random horizontal flip" and refers to ResNet and DenseNet, which differ: this
is DenseNet's, with the ranges of scale and shape that PyTorch made common. Resizing is Pillow's bilinear, which
averages over all pixels when it shrinks. Colours and brightness stay as they are.
"""

from __future__ import annotations

import io
import math

import numpy as np

from fdg_jax.errors import BadInput

SCALES, SHAPES, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
TEST_CUT = 224 / 256  # of a test image's shorter side


class Damaged(BadInput):
    """An image that cannot be decoded; the message names the file."""


def decode_image(content: bytes, where: str):
    """The decoded image (PIL.Image, RGB: grey is repeated, CMYK converted, of 16 bits the upper 8 are kept).

    where: what names it in an error.
    """
    from PIL import Image

    try:
        # One of ImageNet's files is a PNG under a JPEG's name.
        image = Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
        if image.mode.startswith("I"):  # grey with 16 bits: `convert` would make everything above 255 white
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # as Pillow reads colours of 16 bits
        return image.convert("RGB")
    except Exception as error:  # whatever Pillow makes of damaged bytes
        fact = str(error).partition("<_io")[0].strip() or type(error).__name__  # without the address of our buffer
        raise Damaged(f"{where} can't be decoded ({len(content):,} bytes; {fact}). Replace the file.") from None


def random_numbers(seed: int, epoch: int, i: int) -> np.ndarray:
    """The random numbers of image i in an epoch: [4 TRIES + 1] float64 in [0, 1).

    From Philox, which can be begun anywhere at once (beginning a RandomState costs half a millisecond), and its raw
    words, whose stream is frozen.
    """
    key, counter = np.array([seed, epoch], np.uint64), np.array([0, i, 0, 0], np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(4 * TRIES + 1)
    return (words >> np.uint64(11)) * 2.0**-53


def train_crop(image, side: int, random: np.ndarray) -> np.ndarray:
    """A random part of the image, resized and mirrored with probability 1/2: [side, side, 3] uint8.

    random: what `draws` gives. The part has 8 to 100% of the area and is 3:4 to 4:3 in shape, the logarithm uniform.
    Where ten tries find none that fits, it is the largest central one of such a shape.
    """
    from PIL import Image

    left, top, width, height = part(image.width, image.height, random[1:].reshape(TRIES, 4))
    image = image.resize((side, side), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
    return np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random[0] < 0.5 else image)


def part(width: int, height: int, random: np.ndarray) -> tuple[int, int, int, int]:
    """(left, top, width, height) of a random part of an image."""
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
    """The central square of 224/256 of the shorter side, resized: [side, side, 3] uint8.

    That is "resize to 256, cut 224 out of the centre" in one step; what it cuts may lie a fraction of a pixel beside.
    """
    from PIL import Image

    cut = min(image.size) * TEST_CUT
    left, top = ((length - cut) / 2 for length in image.size)
    return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, box=(left, top, left + cut, top + cut)))


test_crop.__test__ = False  # its name is not meant for pytest
