"""What the command makes of its options and of the machine before it trains."""

from collections import namedtuple

import pytest

from fdg_jax.config import Config
from fdg_jax.errors import BadInput

Device = namedtuple("Device", "platform id device_kind")


def test_the_engine_that_auto_chooses_is_as_fast_a_one_for_the_baseline(monkeypatch):
    from fdg_jax import methods
    from fdg_jax.training import job as jobs

    def chosen(platform, found, **options):
        devices = [Device(platform, n, platform) for n in range(found)]
        shared = [devices[k * found // options["K"]] for k in range(options["K"])]
        remark = "stages share" if found < options["K"] else ""
        monkeypatch.setattr(jobs.devices, "stage_devices", lambda K, *_: (shared, remark))
        used, places, said = jobs.choose_engine(Config(**options), methods.find(options["method"]))
        assert len(places) == options["K"]
        return used.engine, said

    engine, said = chosen("gpu", 1, method="bp", K=1)
    assert (engine, "auto chose delay-line" in said) == ("delay-line", True)
    engine, said = chosen("gpu", 1, method="fdg", K=2)
    assert (engine, "there are 1 devices for K=2 stages" in said) == ("delay-line", True)
    assert chosen("cpu", 1, method="bp", K=1) == ("pipeline", "")
    assert chosen("gpu", 2, method="fdg", K=2) == ("pipeline", "")
    assert chosen("gpu", 1, method="fdg", K=1, weights="current") == ("pipeline", "")
    assert chosen("gpu", 1, method="fdg", K=2, weights="current") == ("pipeline", "stages share")
    assert chosen("gpu", 1, method="bp", K=1, engine="pipeline") == ("pipeline", "")
    assert chosen("gpu", 1, method="bp", K=1, engine="delay-line") == ("delay-line", "")  # asked for: nothing to tell


@pytest.mark.slow
def test_with_auto_the_number_of_images_is_an_upper_bound(monkeypatch):
    from fdg_jax import data
    from fdg_jax.training.job import load_data

    digits = data.load("digits")
    monkeypatch.setattr(data, "load", lambda *_: digits)
    assert len(load_data(Config(dataset="auto", train_size=3000), "").train_images) == 1438
    with pytest.raises(BadInput, match="1438 training images"):
        load_data(Config(dataset="digits", train_size=3000), "")


def test_warm_up_is_the_papers_rule_and_bp_knows_no_K():
    from fdg_jax import methods
    from fdg_jax.training import job as jobs

    def wants_warmup(options: Config) -> bool:
        return jobs.wants_warmup(options, methods.find(options.method))

    assert not wants_warmup(Config(K=2))
    assert wants_warmup(Config(K=3))
    assert wants_warmup(Config(K=2, model="resnet110"))
    assert not wants_warmup(Config(K=4, method="bp"))
    assert not wants_warmup(Config(K=4, warmup="off"))
    assert wants_warmup(Config(K=1, warmup="on"))


def test_windows_lie_on_a_grid_that_divides_an_epoch():
    from fdg_jax.training.job import default_window

    assert default_window(Config(engine="delay-line"), "gpu", 50_000) == 39  # 390 full batches of 128
    assert default_window(Config(engine="delay-line"), "gpu", 128 * 397) == 50  # 397 is prime
    assert default_window(Config(engine="delay-line"), "cpu", 50_000) == 1
    assert default_window(Config(engine="pipeline"), "gpu", 50_000) == 1
