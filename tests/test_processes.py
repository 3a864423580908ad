"""Stages in several processes train as stages in one: the same losses, evaluation and state, to the last bit."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from cifar_processes import QUICK, printed

import fdg_jax
from fdg_jax.errors import BadInput
from fdg_jax.transport import across_processes, notices

CHILD = Path(__file__).with_name("process_child.py")


def trained(folder, processes, settings=None, **options):
    """What each process saw, in order. The launcher starts them, unless there is only one. settings: environment."""
    folder.mkdir()
    launch = ["-m", "fdg_jax.launch", "--processes", str(processes), "--"] if processes > 1 else []
    printed(*launch, CHILD, folder, json.dumps(options), environment=settings or {})
    return [json.loads((folder / f"{process}.json").read_text()) for process in range(processes)]


def same_everywhere(folder, processes, settings=None, **options):
    """Trains in one process and in several, and compares all that each of them saw."""
    (alone,) = trained(folder / "one", 1, settings, **options)
    stages = alone.pop("local stages")
    together = trained(folder / "several", processes, settings, **options)
    assert [k for seen in together for k in seen.pop("local stages")] == stages
    assert together == [alone] * processes
    with np.load(folder / "one" / "state.npz") as one, np.load(folder / "several" / "state.npz") as several:
        assert sorted(one) == sorted(several)
        for name in one:
            np.testing.assert_array_equal(one[name], several[name], err_msg=name)


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    """With a batch of another size, a guard, and two stages in one of the processes."""
    same_everywhere(tmp_path, 2, QUICK, beta=0.5, guard=True)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "options"), [
    (2, {"K": 2, "R": 2}),
    (2, {"R": [2, 1, 2], "guard": True, "method": "gpipe"}),
    (3, {"order": "forward-first"}),
    (3, {"weights": "current"}),
    (3, {"accumulate": 2}),
    (3, {"weighted": True, "gradient_norms": True, "guard": True}),
    (3, {"weighted": True, "method": "gpipe", "K": 4}),
    (3, {"mixed": True, "K": 4}),
    (3, {"mixed": True, "method": "gpipe"}),
    (3, {"mixed": True, "method": "dgl"}),
    (3, {"K": 4, "guard": True}),
    (3, {"K": 4, "ema": 0.5}),
    (4, {"K": 4}),
    *[(3, {"method": method}) for method in ("bp", "ddg", "dfa", "dgl", "dni", "fa", "fr", "gpipe", "scaled_bp")],
], ids=str)  # fmt: skip
def test_any_method_in_several_processes_trains_as_in_one(processes, options, tmp_path):
    same_everywhere(tmp_path, processes, **options)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fdg", "fr", "dni"])  # which keep different things of a batch
def test_a_state_goes_on_in_another_number_of_processes(method, tmp_path):
    (whole,) = trained(tmp_path / "one", 1, method=method)
    begun = str(tmp_path / "one" / "state.npz")
    several = trained(tmp_path / "on in three", 3, method=method, resume=begun)
    back_from = str(tmp_path / "on in three" / "state.npz")
    (back,) = trained(tmp_path / "on in one", 1, method=method, resume=back_from)
    for seen in (*several, back):
        assert seen["state_sha256"] == whole["state_sha256"]
        assert seen["evaluation"] == whole["evaluation"] and seen["updates"] == whole["updates"]
        assert seen["losses"] == whole["losses"][-len(seen["losses"]) :]


@pytest.mark.slow
def test_processes_that_were_started_differently_are_refused(tmp_path):
    with pytest.raises(AssertionError, match=r"process 1 has beta 0\.25, process 0 has beta 0\.5\. Start all with the"):
        trained(tmp_path / "out", 2, beta=0.5, **{"of process 1": {"beta": 0.25}})
    with pytest.raises(AssertionError, match=r"process 1 has K 4, process 0 has K 3\. Start all with the"):
        trained(tmp_path / "another", 2, **{"of process 1": {"K": 4}})


@pytest.mark.parametrize(("found", "fact"), [
    ([{"a": "1"}, {"a": "1"}], ""),
    ([{"a": "1"}, {"a": "1"}, {"a": "2"}], "process 2 has a 2, process 0 has a 1."),
    ([{"a": "1"}, {"a": "1", "b": "3"}], "process 1 has b 3, process 0 has b none."),
    ([{"a": "1", "b": "3"}, {"a": "1"}], "process 1 has b none, process 0 has b 3."),
])  # fmt: skip
def test_the_first_difference_is_named_with_both_values(found, fact):
    assert notices.first_difference(found) == fact


@pytest.mark.slow
def test_the_delay_line_is_refused_in_several_processes(tmp_path):
    with pytest.raises(AssertionError, match="engine delay-line trains on one device in one process"):
        trained(tmp_path / "out", 2, engine="delay-line")


@pytest.mark.parametrize(("arguments", "fact"), [
    (("localhost:1234", 0, 2, 2), "'localhost:1234' is not an IPv4 address with a port"),
    (("127.0.0.1", 0, 2, 2), "'127.0.0.1' is not an IPv4 address with a port"),
    (("127.0.0.1:1234", 2, 2, 2), "process 2 of 2 with K=2 stages"),
    (("127.0.0.1:1234", 0, 3, 2), "process 0 of 3 with K=2 stages"),
    (("127.0.0.1:1234", 0, 2, 2, "myhost"), "'myhost' is not an IPv4 address"),
    (("[::1]:1234", 0, 2, 2), "is not an IPv4 address with a port"),
    (
        ("10.0.0.1:1234", 0, 2, 2, "127.0.0.1"),
        "would be reached at 127.0.0.1, but other hosts can reach only one of these",
    ),
    (("10.0.0.1:1234", 0, 2, 2, "203.0.113.9"), "address 203.0.113.9 cannot be used on this host"),
    (("127.0.0.1:1234", 0, 2, 2), "JAX has already started"),
])  # fmt: skip
def test_what_cannot_be_joined_is_refused(arguments, fact):
    jnp.zeros(()).block_until_ready()  # JAX starts, whichever tests ran before
    with pytest.raises(BadInput, match=fact):
        fdg_jax.join_processes(*arguments)


def test_what_is_gathered_comes_out_as_it_went_in():
    arrays = {"a": np.arange(6, dtype=np.int64).reshape(2, 3), "b": np.zeros((0, 4)), "c": np.float32(2.5)}
    listed, content = across_processes.packed(arrays)
    found = across_processes.unpacked(json.loads(json.dumps(listed)), content)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == np.asarray(array).dtype and found[name].shape == np.shape(array)
