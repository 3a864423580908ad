"""The flags of `benchmarks.simulate` for stages in several processes or on several hosts."""

import json

import pytest

from benchmarks import simulate
from benchmarks.harness import machines
from benchmarks.harness.side_specs import Side
from fdg_jax.schedule.simulator import Link


@pytest.fixture
def flags(tmp_path):
    """Flags of a model whose blocks take 1 s forward and 2 s backward, 9 s in stage 1 and 6 s in stage 2 for K = 2."""
    file = tmp_path / "times.json"
    file.write_text(json.dumps({"F": [1, 1, 1, 1, 1], "B": [2, 2, 2, 2, 2]}))
    return ["--model", "resnet8", "--batch-size", "10", "--times", str(file), "--split", "3", "--K", "2", "--method"]


def test_simulate_says_what_a_network_between_two_processes_costs(flags, capsys, tmp_path):
    sides = ["fdg", "fdg:order=forward-first", "gpipe:micro_batches=2"]
    network = ["--link", "1s,8Mbit/s", "--message-bytes", "2000000", "--processes", "2"]  # 1 s and 2 s of 2 MB
    assert simulate.main([*flags, *sides, *network, "--json", str(tmp_path / "rows")]) == 0
    first, forward, gpipe = map(json.loads, (tmp_path / "rows").read_text().splitlines())
    # The loop of both stages and two messages: 15 + 6 s in two ticks, or in three, and then stage 1 takes longer.
    assert (first["milliseconds_per_batch"], forward["milliseconds_per_batch"]) == (10500, 9000)
    assert (first["limiting"], forward["limiting"]) == ("waiting", "stage")
    assert (first["lost_to_links_percent"], forward["lost_to_links_percent"]) == (14.3, 0)
    assert forward["link_percent"] == {"1 to 2": 22.2, "2 to 1": 22.2}  # 2 of 9 s
    # Two parts with half the bytes each: 2 s in all.
    assert gpipe["link_percent"]["1 to 2"] == round(200 / (gpipe["milliseconds_per_batch"] / 1000), 1)
    assert (first["processes"], first["link"]) == (2, "1s,8Mbit/s")
    out = capsys.readouterr().out
    assert "| 10500.0 |" in out and "| 1 to 2: 22%, 2 to 1: 22% | 0% | stage |" in out
    assert "link 1s,8Mbit/s (2 processes)" in out


def test_one_link_is_that_between_processes_and_several_are_those_of_the_boundaries(flags):
    def network(*words, K=4):
        return simulate.network(simulate.parser().parse_args([*flags, "fdg", *words]), K)

    wire, none = machines.link("1ms,1"), Link()
    assert network("--link", "1ms,1") == ([wire] * 3, [0, 0, 0, 0])
    assert network("--link", "1ms,1", "--processes", "2") == ([none, wire, none], [0, 0, 1, 1])
    assert network("--link", "1ms,1", "--processes", "3", K=3) == ([wire, wire], [0, 1, 2])
    assert network("--link", "none", "none", "1ms,1", "--processes", "2") == ([none, none, wire], [0, 0, 1, 1])
    assert network("--link", "1ms,1", "--processes", "2", K=1) == ([], [0])  # BP on one device


def test_the_bytes_of_a_boundary_are_those_of_both_directions_and_of_a_part_of_a_batch():
    given = simulate.parser().parse_args(["--message-bytes", "600", "60"])
    table = {("x", 2): 1, ("x", 3): 2, ("dy", 1): 3, ("dy", 2): 4, ("other", 1): 5}
    side = Side("gpipe", "gpipe", 3, 1, "small", 16, options={"micro_batches": 4})
    expected = {("x", 2): 150, ("x", 3): 15, ("dy", 1): 150, ("dy", 2): 15, ("other", 1): 5}
    assert simulate.sizes(given, side, table) == expected
    given.message_bytes = None
    assert simulate.sizes(given, side, table) == table
