"""One photograph: which part of it is seen, mirrored or not, and which formats are read."""


import numpy as np
import pytest
from PIL import Image

from fdg_jax.data import jpeg
from tests.image_files import photo


def test_a_random_part_lies_inside_and_has_the_area_and_shape_it_may_have():
    for size in ((500, 375), (60, 61), (1, 1), (9, 400), (400, 9)):
        for i in range(300):
            left, top, width, height = jpeg.part(*size, jpeg.random_numbers(0, 0, i)[1:].reshape(-1, 4))
            assert 0 <= left <= size[0] - width and 0 <= top <= size[1] - height
            assert width > 0 and height > 0
            if size == (500, 375):  # sides are rounded to whole pixels, the shorter one is 100 or more
                assert 0.079 < width * height / (500 * 375) <= 1
                assert 0.74 < width / height < 1.35


def test_the_random_numbers_of_an_image_are_its_own_and_the_same_on_every_numpy():
    draws = np.stack([jpeg.random_numbers(seed, epoch, i) for seed in (0, 1) for epoch in (0, 1) for i in range(250)])
    assert draws.shape == (1000, 41) and len(np.unique(draws)) == draws.size
    # 41,000 uniform numbers: their mean is 1/2 with a standard deviation of 0.0014.
    assert abs(draws.mean() - 0.5) < 0.006
    assert jpeg.random_numbers(1, 2, 3)[:2].tolist() == [0.13732203113233543, 0.22522750207501308]


def test_a_mirrored_crop_is_the_crop_mirrored_and_a_whole_one_the_image_resized():
    image = jpeg.decode_image(photo(3, (224, 224)), "it")
    numbers = np.array([0.5, *(10 * [1.0, 0.5, 0.0, 0.0])])  # all of the area, square
    plain = jpeg.train_crop(image, 224, numbers)
    np.testing.assert_array_equal(plain, np.asarray(image))
    numbers[0] = 0.49
    np.testing.assert_array_equal(jpeg.train_crop(image, 224, numbers), plain[:, ::-1])


def test_a_test_image_is_the_centre_of_the_image():
    ramp = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None, None], (256, 256, 3))
    image = Image.fromarray(np.ascontiguousarray(ramp))
    np.testing.assert_array_equal(jpeg.test_crop(image, 224), ramp[16:240, 16:240])
    wide = Image.fromarray(np.concatenate([np.zeros_like(ramp), ramp, np.zeros_like(ramp)], axis=1))
    np.testing.assert_array_equal(jpeg.test_crop(wide, 224), ramp[16:240, 16:240])


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_printers_colours_become_three_channels(mode):
    image = np.asarray(jpeg.decode_image(photo(1, mode=mode), "it")).astype(int)
    assert image.shape == (64, 64, 3)
    if mode == "L":
        assert (image[..., 0] == image[..., 2]).all()
