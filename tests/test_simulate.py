"""What the simulator is fed with and prints, and what real runs are recorded as beside it."""


import jax
import pytest
import small

from benchmarks.harness import machines
from fdg_jax import methods
from fdg_jax.engine import memory
from fdg_jax.errors import BadInput
from fdg_jax.schedule.simulator import Link, Machine, predict

K, N = 2, 4
DATA = small.batches(3 * K + 2 + 2 * N)



def test_a_link_is_a_name_or_two_numbers_and_what_is_no_link_or_no_times_is_refused(tmp_path):
    for text, link in (
        ("none", Link()), ("10,12.5", Link(1e-5, 1 / 12.5e9)), ("0,1", Link(0, 1e-9)),
        ("10ms,1Gbit/s", Link(1e-2, 8e-9)), ("1e2us,2GB/s", Link(1e-4, 5e-10)), ("7,250MB/s", Link(7e-6, 4e-9)),
        ("pcie", machines.LINKS["pcie"]),
    ):  # fmt: skip
        assert machines.link(text) == pytest.approx(link)  # units multiplied in floats
    for text in ("", "ethernet", "10", "10,0", "-1,3", "1,nan", "1,2,3", "1m,1", "1GB/s,1ms"):
        with pytest.raises(BadInput, match="--link"):
            machines.link(text)
    file = tmp_path / "times.json"
    for held in ("", "[]", '{"F": [1], "B": [1, 2]}', '{"F": [1, 2], "B": [1, -2]}'):
        file.write_text(held)
        with pytest.raises(BadInput, match="2 blocks"):
            machines.read(str(file), 2)


def test_stages_are_sums_of_blocks_and_a_methods_operations_what_its_cost_says():
    times = machines.BlockTimes([1.0, 2.0, 4.0], [10.0, 20.0, 40.0], [0.1, 0.2, 0.4], auxiliary=100.0)

    def seconds(name, **options):
        made = machines.of_blocks(times, (1,), methods.find(name).schedule(2, **options), [8, 16], link=Link(0, 1))
        return {(kind, k): made.seconds(kind, k) for kind in "FBUS" for k in (1, 2)}

    fdg = {("F", 1): 1, ("F", 2): 6, ("B", 1): 10, ("B", 2): 60, ("U", 1): 0.1, ("U", 2): 0.2 + 0.4}
    fdg |= {("S", 1): 0, ("S", 2): 0}
    assert seconds("fdg") == pytest.approx(fdg)
    assert seconds("fr") == pytest.approx({**fdg, ("B", 1): 11, ("B", 2): 66})
    assert seconds("dgl") == pytest.approx({**fdg, ("B", 1): 110})
    assert seconds("dni") == pytest.approx({**fdg, ("S", 1): 100})
    quarter = {key: each / (4 if key[0] in "FB" else 1) for key, each in fdg.items()}
    assert seconds("gpipe", micro_batches=4) == pytest.approx(quarter)
    # Half the batch each, and every weight's gradient once up and down the ring: 2 (K-1)/K of 8 and 16 bytes.
    half = {key: each / (2 if key[0] in "FB" else 1) for key, each in fdg.items()}
    assert seconds("data_parallel") == pytest.approx({**half, ("B", 1): 5 + 8, ("B", 2): 30 + 16})


@pytest.mark.parametrize("name", small.mostly_slow(["fr", "fdg", "dni"], "fr"))
def test_batches_kept_are_those_that_memory_counts(name):
    engine = small.pipeline(3, DATA[0], method=name, devices=jax.local_devices()[:1] * 3).engine
    found = predict(engine.loop.schedule, Machine(lambda kind, k: {"F": 1, "B": 2}.get(kind, 0)))
    moments = list(memory.over_time(engine))
    assert [max(held.kept for j, held in moments if j == k) for k in (1, 2, 3)] == found.kept
