"""What the simulator is fed with and prints, and what real runs are recorded as beside it."""

import json

import jax
import numpy as np
import pytest
import small

from benchmarks import simulate
from benchmarks.harness import machines, operation_times, validate
from benchmarks.harness.side_specs import Side
from fdg_jax import methods
from fdg_jax.engine import memory
from fdg_jax.errors import BadInput
from fdg_jax.schedule.simulator import Link, Machine, predict

K, N = 2, 4
SLOW = pytest.mark.slow  # many programs to compile
DATA = small.batches(3 * K + 2 + 2 * N)
IMAGES, LABELS = (np.concatenate(arrays) for arrays in zip(*DATA, strict=True))
ROWS = np.arange(len(LABELS)).reshape(len(DATA), -1)
FILL = 3 * K + 2


def full(method, **options):
    """A pipeline that is full and has compiled."""
    made = small.pipeline(K, DATA[0], method=method, devices=jax.local_devices()[:1] * K, **options)
    made.train(IMAGES, LABELS, ROWS[:FILL])
    made.wait()
    return made


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


@pytest.mark.parametrize("name", ["fr", pytest.param("fdg", marks=SLOW), pytest.param("dni", marks=SLOW)])
def test_batches_kept_are_those_that_memory_counts(name):
    engine = small.pipeline(3, DATA[0], method=name, devices=jax.local_devices()[:1] * 3).engine
    found = predict(engine.loop.schedule, Machine(lambda kind, k: {"F": 1, "B": 2}.get(kind, 0)))
    moments = list(memory.over_time(engine))
    assert [max(held.kept for j, held in moments if j == k) for k in (1, 2, 3)] == found.kept


@SLOW
@pytest.mark.parametrize("name", ["fdg", "dni", "data_parallel"])
def test_operations_timed_by_themselves_are_those_of_the_schedule_and_change_no_training(name):
    timed, plain = full(name), full(name)
    told = operation_times.measure(timed.engine, IMAGES, LABELS, ROWS[FILL : FILL + N], cores=2)
    rounds = 1 if told["crowded"] is None else 2
    if rounds == 2:
        assert told["crowded"].keys() >= {"F/1", "B/1", "U/1", "F/2", "B/2", "U/2"}
    plain.train(IMAGES, LABELS, np.concatenate([ROWS[FILL : FILL + N]] * rounds))
    assert timed.state_sha256() == plain.state_sha256()
    kinds = {op.kind for op in timed.engine.loop.schedule.tick(20, None)} | {"U"}
    for k in (1, 2):
        assert all(f"{kind}/{k}" in told["alone"]["device"] for kind in kinds if (kind, k) != ("S", 2))
    assert all(0 <= each < 10 for part in told["alone"].values() for each in part.values())
    assert (told["crowded"] is None) == (name == "data_parallel")
    json.dumps(told)
    side = Side(name, name, K, 2, "small", 16)
    assert validate.predicted(side, told).seconds > 0
    assert timed.engine.stages[1].run.__name__ == "run"  # nothing is left behind


@pytest.mark.slow
def test_simulate_prints_a_row_a_method_and_K_from_a_file_of_block_times(capsys, tmp_path):
    file = tmp_path / "times.json"
    file.write_text(json.dumps({"F": [1, 1, 1, 1, 1], "B": [2, 2, 2, 2, 2]}))
    flags = ["--model", "resnet8", "--batch-size", "4", "--times", str(file), "--split", "2", "--link", "0,1"]
    assert simulate.main([*flags, "--K", "2", "--method", "bp", "fdg", "--json"]) == 0
    bp, fdg = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (bp["K"], bp["over_bp"], bp["images_per_second"]) == (1, 1, round(4 / 15, 2))
    assert fdg["over_bp"] == pytest.approx(15 / 9, abs=1e-3) and fdg["limiting"] == "stage"
    assert fdg["kept_batches"] == [2, 1] and len(fdg["memory_bytes"]) == 2
    assert fdg["waiting_bytes"][1] == 4 * 32 * 32 * 16 * 4  # a batch of stage 1's maps


@pytest.fixture
def flags(tmp_path):
    """Flags of a model whose blocks take 1 s forward and 2 s backward, 9 s in stage 1 and 6 s in stage 2 for K = 2."""
    file = tmp_path / "times.json"
    file.write_text(json.dumps({"F": [1, 1, 1, 1, 1], "B": [2, 2, 2, 2, 2]}))
    return ["--model", "resnet8", "--batch-size", "10", "--times", str(file), "--split", "3", "--K", "2", "--method"]


@pytest.mark.slow
def test_simulate_says_what_a_network_between_two_processes_costs(flags, capsys, tmp_path):
    sides = ["fdg", "fdg:order=forward-first", "gpipe:micro_batches=2"]
    network = ["--link", "1s,1.31072Mbit/s", "--processes", "2"]  # 1 s and 2 s of 10 x 16 x 16 x 32 floats
    assert simulate.main([*flags, *sides, *network, "--json", str(tmp_path / "rows")]) == 0
    first, forward, gpipe = map(json.loads, (tmp_path / "rows").read_text().splitlines())
    # The loop of both stages and two messages: 15 + 6 s in two ticks, or in three, and then stage 1 takes longer.
    assert (first["milliseconds_per_batch"], forward["milliseconds_per_batch"]) == (10500, 9000)
    assert (first["limiting"], forward["limiting"]) == ("waiting", "stage")
    assert (first["lost_to_links_percent"], forward["lost_to_links_percent"]) == (14.3, 0)
    assert forward["link_percent"] == {"1 to 2": 22.2, "2 to 1": 22.2}  # 2 of 9 s
    # Two parts with half the bytes each: 2 s in all.
    assert gpipe["link_percent"]["1 to 2"] == round(200 / (gpipe["milliseconds_per_batch"] / 1000), 1)
    assert (first["processes"], first["link"]) == (2, "1s,1.31072Mbit/s")
    out = capsys.readouterr().out
    assert "| 10500.0 |" in out and "| 1 to 2: 22%, 2 to 1: 22% | 0% | stage |" in out
    assert "link 1s,1.31072Mbit/s (2 processes)" in out
