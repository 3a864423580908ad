"""Timelines of real runs, and predictions held beside them."""


import pytest
from test_simulate import FILL, IMAGES, LABELS, ROWS, N, full

from benchmarks import simulate, timeline
from benchmarks.harness import gantt, side_specs
from fdg_jax.schedule.simulator import Event


@pytest.mark.slow
def test_a_timeline_has_every_operation_once_in_its_stages_order_and_changes_no_training():
    made, plain = full("fdg"), full("fdg")
    recording = timeline.Recording(made.engine)
    made.train(IMAGES, LABELS, ROWS[FILL : FILL + N])
    made.wait()
    found = timeline.events(recording.stop())
    plain.train(IMAGES, LABELS, ROWS[FILL : FILL + N])
    assert made.state_sha256() == plain.state_sha256()
    ticks = range(FILL + 1, FILL + N + 1)
    expected = sorted((op.kind, op.k, op.batch) for t in ticks for op in made.engine.loop.schedule.tick(t, None))
    done = [event for event in found if event.what in "FB"]
    assert sorted((event.what, event.k, event.batch) for event in done) == expected
    assert sum(event.what == "U" for event in found) == 2 * N
    ends = {(event.what, event.k, event.batch): event.end for event in done}
    for event in done:
        assert event.begin <= event.end
        if (event.what, event.k) == ("F", 2) and ("F", 1, event.batch) in ends:
            # If the first stage's thread was woken last, F1 is seen to end after F2, which then gets no length.
            assert event.begin == event.end or event.begin >= ends["F", 1, event.batch]


def test_a_trace_has_a_process_a_run_and_a_row_a_stage_or_link(tmp_path):
    run = [Event("F", 1, 3, 0.001, 0.002), Event("send", 1, 3, 0.002, 0.0025, 2), Event("F", 2, 3, 0.0025, 0.004)]
    events = timeline.trace(run, run, {})["traceEvents"]
    names = [e["args"]["name"] for e in events if e["ph"] == "M"]
    assert names == ["measured", "stage k=1", "link 1 to 2", "stage k=2", "predicted", *names[1:4]]
    assert [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"][:1] == [("F3", 1000.0, 1000.0)]
    gantt.draw({"measured": run, "predicted": run}, tmp_path / "drawn.png", "both")
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")


def test_what_begins_before_a_window_or_ends_after_it_counts_as_far_as_it_is_inside():
    found = [
        Event("F", 2, 1, 0, 3), Event("F", 1, 2, 2, 4), Event("B", 2, 1, 3, 7), Event("F", 1, 3, 6, 8),
    ]  # fmt: skip
    inside, length = timeline.window(found, 2, 2)
    assert length == 4
    assert [(e.what, e.k, e.begin, e.end) for e in inside] == [("F", 2, 0, 1), ("F", 1, 0, 2), ("B", 2, 1, 4)]
    assert timeline.shares(inside, length, 1) == {"F": 50, "waiting": 50}
    assert timeline.shares(inside, length, 2) == {"B": 75, "F": 25, "waiting": 0}


def test_methods_whose_stages_run_the_same_programs_are_measured_once():
    def programs(text):
        return simulate.programs_of(side_specs.parse(text, {"K": 2, "model": "resnet8", "batch_size": 4}, "", "2"))

    assert programs("fdg") == programs("ddg") == programs("fdg:order=forward-first")
    assert len({programs(text) for text in ("fdg", "fdg:accumulate=2", "fr", "dgl", "dgl:aux=linear", "gpipe")}) == 6
