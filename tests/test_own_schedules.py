"""A method of one's own whose schedule does not do what it says is refused before it trains."""

import re
import time

import pytest
from small import batches, pipeline
from test_own_options import run

from fdg_jax import methods
from fdg_jax.checks import names, schedules
from fdg_jax.errors import BadInput
from fdg_jax.methods.fdg import fdg
from fdg_jax.methods.interface import Method
from fdg_jax.schedule import Op, bp

FILE = '''"""DDG with a slip: one too many behind."""

from fdg_jax.methods.ddg import METHOD as DDG


def schedule(K):
    made = DDG.schedule(K)
    return made._replace(name="slip", behind=tuple(n + 1 if n else 0 for n in made.behind))


METHOD = DDG._replace(name="slip", schedule=schedule)
'''
LATER = fdg(3, "forward-first")  # behind (4, 2, 0)
FACT = "the gradient of batch 9 at stage k=1 has staleness 2 by the ticks and 3 by behind=(3, 2, 0)."


def mine(schedule) -> Method:
    return Method("mine", "", lambda K: schedule)


@pytest.mark.parametrize(("schedule", "says"), [
    (LATER._replace(behind=(4, 1, 0)), "stage k=2 has staleness 2 by the ticks and 1 by behind=(4, 1, 0)"),
    (LATER._replace(behind=(4, 2, 1)), "stage k=3 has staleness 0 by the ticks and 1 by behind=(4, 2, 1)"),
    (LATER._replace(behind=(4, 2)), "behind has 2 numbers, and there are 3 stages."),
    (LATER._replace(behind=(10**9, 2, 0)), "stage k=1 has staleness 4 by the ticks"),
    (bp(2)._replace(tick=lambda t, last: bp(2).tick(t, last)[:-1]), "sent and never read: dy of batch 1 for stage k=1"),
    (bp(1)._replace(tick=lambda t, last: (Op("F", 1, t),)), "never done: B1 of stage k=1"),
    (bp(2)._replace(tick=lambda t, last: bp(2).tick(t, last)[::-1]), "at t=1 stage k=1 does B1, which needs dy of"),
    (LATER._replace(ticks=lambda n: n), "sent and never read: dy of batch 8 for stage k=1"),
])  # fmt: skip
def test_a_schedule_that_contradicts_itself_is_refused_in_one_sentence_with_stage_and_numbers(schedule, says):
    with pytest.raises(BadInput, match=re.escape(says)) as refused:
        schedules.check(mine(schedule), schedule)
    said = str(refused.value)
    assert said.startswith("method mine: ") and "\n" not in said
    assert said.endswith("Correct the schedule in fdg_jax/methods/mine.py.")


def test_a_pipeline_refuses_it(monkeypatch):
    schedule = fdg(2)._replace(behind=(3, 0))
    monkeypatch.setattr(names, "find_method", lambda name: mine(schedule))
    with pytest.raises(BadInput, match=r"stage k=1 has staleness 1 by the ticks and 3 by behind=\(3, 0\)"):
        pipeline(2, batches(1)[0], method="mine")


def test_the_command_refuses_it_and_so_does_the_one_that_draws(tmp_path):
    (tmp_path / "slip.py").write_text(FILE)
    code, out, err = run(tmp_path, "--method slip --K 3")
    assert (code, out) == (2, "")
    assert err == f"error: method slip: {FACT} Correct the schedule in fdg_jax/methods/slip.py.\n"
    draw = "import sys, fdg_jax.methods as methods\nmethods.__path__.append(sys.argv.pop(1))\n"
    draw += "from fdg_jax.schedule import __main__ as command\nsys.exit(command.main(sys.argv[1].split()))"
    code, out, err = run(tmp_path, "--method slip --K 3", script=draw)
    assert (code, out) == (2, "") and err.startswith("error: method slip, schedule slip: ") and "Traceback" not in err


@pytest.mark.parametrize("name", methods.names())
@pytest.mark.parametrize("K", [1, 2, 4, 8])
def test_the_methods_of_the_package_pass_and_nobody_waits_for_it(name, K):
    method = methods.find(name)
    schedule = method.schedule(K)
    taken = []
    for _ in range(3):
        before = time.thread_time()
        schedules.check(method, schedule)
        taken.append(time.thread_time() - before)
    assert min(taken) < 0.05  # seconds


def test_with_more_stages_or_very_many_micro_batches_it_is_left_out():
    for large in (fdg(9)._replace(behind=(0,) * 9), methods.find("gpipe").schedule(8, micro_batches=1000)):
        before = time.thread_time()
        schedules.check(mine(large), large)
        assert time.thread_time() - before < 0.05
