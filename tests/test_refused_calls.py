"""Calls that are refused before anything compiles. Each message states the fact with its numbers, and the way out."""

import json
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from small import CLASSES, batches, pipeline

import fdg_jax
from fdg_jax import corrections
from fdg_jax.errors import BadInput
from fdg_jax.machine import jax_internals
from fdg_jax.methods.fdg import fdg
from fdg_jax.methods.gpipe import gpipe
from fdg_jax.schedule.hardware import Link, Machine, check_machine
from fdg_jax.transport import notices

DATA = batches(1)[0]
SECOND = Machine(lambda kind, k: 1)  # every operation takes a second


class Pair(nn.Module):
    """Gives two arrays."""

    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(4)(x), nn.Dense(3)(x)


class Both(nn.Module):
    """Takes two arrays, and gives the scores of the classes."""

    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(CLASSES)(jnp.concatenate(x, axis=-1))


class Total(nn.Module):
    """Gives one number, without an axis."""

    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(4)(x).sum()


def trained(*stages: nn.Module, **options) -> Callable[[], object]:
    return lambda: pipeline(len(stages), DATA, stages=list(stages), **options)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "order": (lambda: fdg(3, "sideways"), "order='sideways' is not known. Use backward-first"),
    "accumulate": (lambda: fdg(3, accumulate=0), "accumulate=0: .* Use 1 or more"),
    "accumulation": (lambda: fdg(3, accumulate=2, accumulation="max"), "accumulation='max' .* Use sum"),
    "micro-batches": (lambda: gpipe(2, 0), "micro_batches=0 must be a whole number. Use 1"),
    "link": (lambda: check_machine(SECOND._replace(link=Link(-1, 0)), 2), "link of -1 s .* use numbers of 0 or more"),
    "links": (lambda: check_machine(SECOND._replace(link=[Link(0, 0)] * 2), 2), "2 links for K=2 stages"),
    "processes": (lambda: check_machine(SECOND._replace(processes=(0, 1, 1)), 2), "3 entries for K=2 stages"),
    "seconds": (lambda: check_machine(Machine(lambda kind, k: -k), 2), "F of stage k=1 takes -1 s: give 0 or more"),
    "cores": (lambda: check_machine(SECOND._replace(cores=0), 2), "cores=0: give 1 or more"),
    "devices of stages": (lambda: SECOND.replicated([2], [8, 8], Link(0, 0)), "1 numbers of devices for K=2 stages"),
    "option twice": (
        lambda: corrections.parse([corrections.find("dc_asgd"), corrections.find("dc_asgd")._replace(name="mine")]),
        "dc_asgd and mine both have the option .* Use one",
    ),
    "nnx arguments": (
        lambda: fdg_jax.from_nnx(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), 4), "arguments for a Linear that exists already",
    ),
    "nnx number": (lambda: fdg_jax.from_nnx(3), "a function or a module, not 3. Use from_nnx.nnx.Linear, 8, 64."),
    "nnx rngs": (lambda: fdg_jax.from_nnx(nnx.Linear, 8, 4, rngs=nnx.Rngs(0)), "makes the rngs itself.* Leave rngs"),
    "nnx class": (trained(fdg_jax.from_nnx(nnx.Linear, 8)), "the nnx module Linear cannot be made: .* Change its arg"),
    "dfa": (trained(Pair(), Both(), method="dfa"), "dfa needs one array of errors and one of activations; stage k=1"),
    "dni": (trained(Pair(), Both(), method="dni"), "dni predicts the gradient of one array, but stage k=1 or 2 has"),
    "no axis": (trained(Total(), nn.Dense(CLASSES)), r"float32\[\] to stage k=2, .* Give scale\[None\], say"),
    "no devices": (lambda: fdg_jax.emulate_cpu(0), r"emulate_cpu\(0\): .* must be 1 or more"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_with_the_fact_and_the_way_out(what):
    call, says = REFUSED[what]
    with pytest.raises(BadInput, match=says):
        call()


def test_on_devices_asked_for_too_late_there_is_a_warning_and_without_any_a_refusal(monkeypatch):
    there = jax.local_device_count()
    with pytest.warns(UserWarning, match=rf"emulate_cpu\({there + 1}\) comes too late: .* has {there} CPU devices"):
        fdg_jax.emulate_cpu(there + 1)
    monkeypatch.setattr(jax, "local_devices", lambda: 1 / 0)
    with pytest.raises(BadInput, match=r"JAX finds no device: .* Set JAX_PLATFORMS=cpu"):
        pipeline(2, DATA)


class Coordination:
    """JAX's store of texts, as process 0 of 2 sees it. texts: what process 1 has put there, and what is put since."""

    def __init__(self, texts: dict[str, str]):
        self.texts = texts

    def key_value_set(self, name: str, text: str, allow_overwrite: bool) -> None:
        assert allow_overwrite
        self.texts[name] = text

    def blocking_key_value_get(self, name: str, milliseconds: int) -> str:
        if name not in self.texts:
            raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: GetKeyValue() timed out with key")
        return self.texts[name]


def test_settings_that_differ_between_processes_are_refused_and_a_text_that_is_late_is_none(monkeypatch):
    store = Coordination({})
    monkeypatch.setattr(jax_internals, "coordination_client", lambda: store)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(notices, "SHARED", iter(range(9)))
    assert notices.Notices().wait("anything", 0.001) is None
    store.texts |= {f"fdg_jax/all {n}/1": json.dumps({"K": K, "beta": "1.0"}) for n, K in enumerate(("2", "3"))}
    notices.check_same({"K": "2", "beta": "1.0"})
    with pytest.raises(BadInput, match=r"process 1 .* Start all with the same command line"):
        notices.check_same({"K": "2", "beta": "1.0"})
