"""What a training image goes through: every output is a true crop, chosen evenly, given by (seed, step)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import jit

from fdg_jax.data import augment
from fdg_jax.data.dataset import Dataset
from fdg_jax.errors import BadInput

NONE = np.zeros(0)
PAD = 4


def meta(**changes) -> Dataset:
    base = Dataset("test", NONE, NONE, NONE, NONE, 10, (0.49, 0.48, 0.44), (0.25, 0.24, 0.26), PAD, True)
    return base._replace(**changes)


def raw(**changes) -> Dataset:
    """With this mean and deviation the transform leaves a pixel's value as it is, in 0..255."""
    return meta(mean=(0.0,) * 3, std=(1 / 255,) * 3, **changes)


def images(batch: int, height: int = 32, width: int = 32, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(1, 256, (batch, height, width, 3), np.uint8)


def find_crop(output: np.ndarray, image: np.ndarray, pad: int) -> list[tuple[int, int, bool]]:
    """All (down, right, mirrored) whose crop of the zero-padded image is `output`."""
    height, width, _ = image.shape
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
    found = []
    for down in range(2 * pad + 1):
        for right in range(2 * pad + 1):
            crop = padded[down : down + height, right : right + width]
            found += [
                (down, right, flip)
                for flip in (False, True)
                if (crop[:, ::-1] if flip else crop).tobytes() == output.tobytes()
            ]
    return found


@pytest.mark.parametrize(("height", "width", "pad"), [(32, 32, 4), (32, 32, 2), (32, 32, 0), (8, 12, 3)])
def test_every_output_is_one_crop_of_the_zero_padded_image_mirrored_or_not(height, width, pad):
    batch = images(16, height, width)
    outputs = np.asarray(jit(augment.train_transform(raw(pad=pad), 3))(batch, 5))
    assert outputs.dtype == np.float32
    for output, image in zip(outputs, batch, strict=True):
        whole = np.rint(output).astype(np.uint8)
        np.testing.assert_allclose(output, whole, atol=1e-4)  # 255 * (1/255) is 1 up to float32's rounding
        assert len(find_crop(whole, image, pad)) == 1


def choices(seed: int, steps: int, batch: int, pad: int = PAD) -> np.ndarray:
    """[steps * batch, 3]: down, right, mirrored, as `draw` makes them."""
    draw = jit(jax.vmap(lambda step: jnp.stack(augment.draw(seed, step, batch, pad), axis=-1)))
    return np.asarray(draw(jnp.arange(steps))).reshape(-1, 3)


def test_the_crops_are_the_drawn_ones():
    # The statistics below are of `draw`; this ties what is seen in the images to it.
    batch = images(32)
    outputs = np.asarray(jit(augment.train_transform(raw(), 3))(batch, 5))
    drawn = np.stack([np.asarray(part) for part in augment.draw(3, 5, 32, PAD)], axis=-1)
    for output, image, (down, right, mirrored) in zip(outputs, batch, drawn, strict=True):
        ((found_down, found_right, found_mirrored),) = find_crop(np.rint(output).astype(np.uint8), image, PAD)
        assert (found_down, found_right, found_mirrored) == (down, right, bool(mirrored))


def test_all_81_offsets_and_both_mirrorings_are_equally_frequent():
    drawn = choices(seed=0, steps=400, batch=128)  # 51,200 images
    cells = np.bincount(drawn[:, 0] * 18 + drawn[:, 1] * 2 + drawn[:, 2], minlength=162)
    expected = len(drawn) / 162
    # Chi-square with 161 degrees of freedom: mean 161, deviation 18. Five deviations; fixed seed, no chance.
    assert ((cells - expected) ** 2 / expected).sum() < 161 + 5 * 18
    assert cells.min() > 0


def test_flip_false_never_mirrors():
    batch = images(64)
    outputs = np.asarray(jit(augment.train_transform(raw(flip=False), 0))(batch, 0))
    for output, image in zip(outputs, batch, strict=True):
        assert [flip for _, _, flip in find_crop(np.rint(output).astype(np.uint8), image, PAD)] == [False]


@pytest.mark.slow
def test_alone_in_a_scan_under_vmap_and_traced_into_more_the_bits_are_the_same():
    transform, batch, steps = augment.train_transform(meta(), 7), images(16), jnp.arange(6, dtype=jnp.int32)
    alone = np.stack([np.asarray(jax.jit(transform)(batch, step)) for step in steps])

    def window(total, step):
        x = transform(batch, step)
        # A consumer that invites fusion: sums over x must not change how x itself is rounded.
        return total + jnp.sum(x * 1.5 + 0.25), x

    _, scanned = jax.jit(lambda: jax.lax.scan(window, jnp.float32(0), steps))()
    mapped = jax.jit(jax.vmap(transform, (None, 0)))(batch, steps)
    assert alone.tobytes() == np.asarray(scanned).tobytes()
    assert alone.tobytes() == np.asarray(mapped).tobytes()
    assert alone[2].tobytes() == np.asarray(transform(batch, steps[2])).tobytes()  # without jit


def test_an_image_is_treated_alike_in_a_shorter_batch():
    # The last batch of an epoch is shorter; nothing about it is special.
    transform, batch = jax.jit(augment.train_transform(meta(), 7)), images(16)
    assert np.asarray(transform(batch, 3))[:5].tobytes() == np.asarray(transform(batch[:5], 3)).tobytes()


def test_seed_and_step_both_change_the_batch_and_nothing_else_does():
    batch = images(16)
    first = np.asarray(jax.jit(augment.train_transform(meta(), 0))(batch, 0))
    again = np.asarray(jax.jit(augment.train_transform(meta(), 0))(batch, jnp.int32(0)))
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != np.asarray(jax.jit(augment.train_transform(meta(), 0))(batch, 1)).tobytes()
    assert first.tobytes() != np.asarray(jax.jit(augment.train_transform(meta(), 1))(batch, 0)).tobytes()
    with jax.default_prng_impl("rbg"):
        assert first.tobytes() == np.asarray(jax.jit(augment.train_transform(meta(), 0))(batch, 0)).tobytes()


def test_normalisation_is_the_textbook_formula():
    batch = images(8)
    mean, std = np.array(meta().mean), np.array(meta().std)
    expected = (batch.astype(np.float64) / 255 - mean) / std
    # float32's 24 bits on values up to 255 before the subtraction: 255 * 2**-24 / 60, and rounding after it.
    np.testing.assert_allclose(np.asarray(augment.test_transform(meta())(batch)), expected, rtol=1e-6, atol=1e-6)


def test_the_first_draws_are_what_they_were():
    # A run is repeatable only as long as these stay: a change here changes every published number.
    drawn = np.stack([np.asarray(part).astype(int) for part in augment.draw(0, 0, 4, PAD)]).tolist()
    assert drawn == [[7, 4, 8, 0], [0, 7, 6, 4], [0, 1, 1, 1]]
    assert augment.epoch_order(8, 0, 0).tolist() == [3, 7, 4, 0, 2, 6, 5, 1]


def test_an_epochs_order_is_a_permutation_given_by_seed_and_epoch():
    orders = {(seed, epoch): augment.epoch_order(1000, seed, epoch) for seed in (0, 1, 2**32 - 1) for epoch in range(3)}
    for order in orders.values():
        assert order.dtype == np.int32
        assert sorted(order.tolist()) == list(range(1000))
    assert len({order.tobytes() for order in orders.values()}) == len(orders)
    np.testing.assert_array_equal(orders[1, 2], augment.epoch_order(1000, 1, 2))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_would_be_cut_to_32_bits_is_refused(seed):
    for use in (lambda: augment.train_transform(meta(), seed), lambda: augment.epoch_order(4, seed, 0)):
        with pytest.raises(BadInput, match=f"{seed}, but must be between 0 and 4294967295"):
            use()
    jax.jit(augment.train_transform(meta(), 2**32 - 1))(images(16), 0)
