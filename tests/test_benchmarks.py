"""Benchmarks are listed, start as they are shown, refuse what is no measurement, and pages have what was printed."""

import argparse
import os
import re
import shlex
from importlib import import_module
from unittest import mock

import jax
import pytest
from benchmark_runs import ROOT, pins_cores, run

from benchmarks import host_cost, readme
from benchmarks.harness import report


def test_the_list_names_every_benchmark_with_its_first_line():
    done = run("--help")
    assert done.returncode == 0, done.stderr
    files = {file.stem for file in (ROOT / "benchmarks").glob("*.py") if not file.name.startswith("_")}
    listed = dict(line.split(None, 1) for line in done.stdout.partition("\n\n")[0].splitlines())
    assert listed.keys() == files >= {"images_per_second", "host_cost", "block_cost"}
    assert listed["host_cost"] == (host_cost.__doc__ or "").splitlines()[0]


def commands_shown():
    """(file, line) of every command line on the pages, in the benchmarks' help and in the layers' docstring."""
    benchmarks = (ROOT / "benchmarks").glob("[a-z]*.py")
    files = [ROOT / "benchmarks" / "README.md", *readme.pages(), *benchmarks, ROOT / "fdg_jax/layers/__init__.py"]
    for file in files:
        for line in re.findall(r"^.*python -m benchmarks\..*$", file.read_text().replace("\\\n", " "), re.M):
            for command in re.findall(r"`([^`]*python -m benchmarks\.[^`]*)`", line) or [line.strip()]:
                yield file.name, command


def test_every_command_shown_runs_in_the_repositorys_environment_and_has_only_flags_that_there_are():
    class Parsed(Exception):
        pass

    def only_parse(self, arguments):
        parse(self, arguments)  # exits where it refuses
        raise Parsed

    parse, shown = argparse.ArgumentParser.parse_args, list(commands_shown())
    assert {file for file, _ in shown} >= {"README.md", "memory.md", "__init__.py", "block_cost.py"}
    for _, line in shown:
        before, _, command = line.partition(".venv/bin/python -m benchmarks.")
        assert "python" not in before and command, line
        name, *arguments = shlex.split(command)
        with mock.patch.object(argparse.ArgumentParser, "parse_args", only_parse), pytest.raises(Parsed):
            import_module(f"benchmarks.{name}").main(arguments)


@pins_cores
@pytest.mark.parametrize(("benchmark", "words", "said"), [
    ("loader", "--model resnet8 --workers 99", "--workers 99: there are"),
    ("checkpoint_cost", "--batches 49", "a checkpoint every 50 batches. Use more"),
    ("endurance", "--K 3 --processes 2", "Use 1 or 3"),
    ("block_cost", "--json none/rows.jsonl", "cannot be written"),
    ("images_per_second", "--K 9999", "wants 9999 cores"),
    ("several_processes", "--K 9999", "wants 9999 cores"),
    ("timeline", "--method data_parallel --out none", "on all devices"),
    ("simulate", "--K 2 --processes 2 --method data_parallel", "needs one process"),
])  # fmt: skip
def test_what_is_no_measurement_is_one_message_and_exit_code_2_before_anything_starts(
    benchmark, words, said, capsys, monkeypatch
):
    monkeypatch.setattr("fdg_jax.machine.compile_cache.enable", lambda: None)
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
    jax.devices()  # there are as many as there are, so that no 99 can be asked for
    before = os.sched_getaffinity(0)
    assert import_module(f"benchmarks.{benchmark}").main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[-1].startswith("error: ") and said in err.splitlines()[-1]
    assert os.sched_getaffinity(0) == before


def test_a_table_has_a_cell_for_each_head_and_a_flag_with_several_values_a_list():
    columns: dict[str, report.Cell] = {"a": "{K}", "b": report.spread_of("speeds", 1), "c": report.cuts}
    row = {"K": 2, "speeds": [3.0, 1.0, 2.0], "cuts": [1, 4], "blocks": 5}
    assert report.table(columns, [row, row | {"cuts": []}]).splitlines()[2:] == [
        "| 2 | 2.0 (1.0 to 3.0) | 1,4 of 5 |", "| 2 | 2.0 (1.0 to 3.0) | none |"
    ]  # fmt: skip
    made = report.parser("name", "About.", model=["m"], K=2)
    given = made.parse_args(["--model", "x", "y", "--json"])
    assert (given.model, given.K, given.json) == (["x", "y"], 2, "-")


def test_the_pages_have_what_their_commands_printed_last():
    last = dict[str, str]()
    for file in readme.RESULTS.glob("*.jsonl"):
        last |= readme.printed(file)
    texts = [page.read_text() for page in readme.pages()]
    matches = [match for text in texts for match in readme.SHOWN.finditer(text)]
    shown = [readme.command(match["command"]) for match in matches]
    assert last.keys() & set(shown) and len(set(shown)) == len(shown) > 10
    for match in matches:  # nothing typed by hand, nothing left from another command
        assert readme.command(match["command"]) in last or match["text"].strip() == "(not measured yet)"
    assert [readme.rendered(text, last) for text in texts] == texts
