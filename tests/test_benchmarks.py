"""The benchmarks are listed, start as they are shown, and the pages have what they printed."""

import argparse
import re
import shlex
from importlib import import_module
from unittest import mock

import pytest
from benchmark_runs import ROOT, rows_of, run

from benchmarks import __main__ as overview
from benchmarks import host_cost, readme
from benchmarks.harness import report


def test_the_list_names_every_benchmark_with_its_first_line():
    done = run()
    assert done.returncode == 0, done.stderr
    files = {file.stem for file in (ROOT / "benchmarks").glob("*.py") if not file.name.startswith("_")}
    listed = dict(line.split(None, 1) for line in done.stdout.partition("\n\n")[0].splitlines())
    assert listed.keys() == files >= {"images_per_second", "host_cost", "block_cost"}
    assert listed["host_cost"] == (host_cost.__doc__ or "").splitlines()[0]


def test_a_benchmark_that_does_not_exist_is_refused_with_the_nearest_name(capsys):
    assert overview.main(["image_per_second"]) == 2
    assert "Did you mean images_per_second?" in capsys.readouterr().err
    assert overview.main(["nonsense"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


def test_help_lists_the_benchmarks(capsys):
    assert overview.main(["--help"]) == 0
    assert set(overview.names()) <= set(capsys.readouterr().out.split())


def commands_shown():
    """(file, line) of every command line on the pages, in the benchmarks' help and in the layers' docstring."""
    files = [
        ROOT / "benchmarks" / "README.md",
        *readme.pages(),
        *(ROOT / "benchmarks").glob("[a-z]*.py"),
        ROOT / "fdg_jax/layers/basic.py",
    ]
    for file in files:
        text = file.read_text().replace("\\\n", " ")
        for line in re.findall(r"^.*python -m benchmarks\..*$", text, re.M):
            for command in re.findall(r"`([^`]*python -m benchmarks\.[^`]*)`", line) or [line.strip()]:
                yield file.name, command


def test_every_command_shown_runs_in_the_repositorys_environment_and_has_only_flags_that_there_are():
    class Parsed(Exception):
        pass

    def only_parse(self, arguments):
        parse(self, arguments)  # exits where it refuses
        raise Parsed

    parse, shown = argparse.ArgumentParser.parse_args, list(commands_shown())
    assert {file for file, _ in shown} >= {
        "README.md",
        "memory.md",
        "convolutions.md",
        "basic.py",
        "block_cost.py",
        "images_per_second.py",
    }
    for _, line in shown:
        before, _, command = line.partition(".venv/bin/python -m benchmarks.")
        assert "python" not in before and command, line
        name, *arguments = shlex.split(command)
        with mock.patch.object(argparse.ArgumentParser, "parse_args", only_parse), pytest.raises(Parsed):
            import_module(f"benchmarks.{name}").main(arguments)


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


def test_the_readme_links_to_every_page_of_results_and_to_none_that_is_missing():
    text = (readme.HERE / "README.md").read_text()
    assert set(re.findall(r"\]\(results/(\w+\.md)[)#]", text)) == {page.name for page in readme.pages()}
    assert len(text.splitlines()) < 60
    for page in [*readme.pages(), readme.HERE / "README.md"]:
        for target, anchor in re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)
            headings = re.findall(r"^#+ (.*)$", (page.parent / target).read_text(), re.M) if anchor else []
            assert anchor in ("", *(heading.lower().replace(" ", "-") for heading in headings)), (page.name, anchor)


def test_the_readmes_speeds_are_those_of_the_page():
    def times_bp(table, side):
        (row,) = [line.split("|") for line in table.splitlines() if line.startswith(f"| `{side}` |")]
        return float(row[7].split()[0])

    page = readme.RESULTS / "several_processes.md"
    tables = [match["text"] for match in readme.SHOWN.finditer(page.read_text())][:2]  # ResNet-20, WRN-16-4
    assert all(table.split("|")[7].strip() == "over bp" for table in tables)
    told = (ROOT / "README.md").read_text()
    assert "| ResNet-20, batch 128 | WRN-16-4, batch 64 |" in told
    sides = {
        "fdg": "FDG in one process",
        "fdg:processes=each": "FDG, a process for each stage",
        "bp-on-each-core": "two independent BP processes, one on each core",
        "torch-pipeline": "PyTorch's 1F1B pipeline, the same cut",
        "torch-pipeline:split=balanced": "PyTorch's 1F1B pipeline, cut by FLOPs",
        "torch-ddp": "PyTorch's DDP",
    }
    for side, words in sides.items():
        (pair,) = re.findall(rf"^\| {re.escape(words)} \| ([0-9.]+) \| ([0-9.]+) \|$", told, re.M)
        for number_told, table in zip(map(float, pair), tables, strict=True):
            assert abs(number_told - times_bp(table, side)) < 0.0055  # rounded twice
    said = " ".join(told.split())
    assert "PyTorch's DDP is the fastest of these" in said
    assert all(max(sides, key=lambda side: times_bp(table, side)) == "torch-ddp" for table in tables)
    assert "on ResNet-20 its pipeline is faster than ours, too" in said
    assert times_bp(tables[0], "torch-pipeline") > times_bp(tables[0], "fdg")


def test_the_summary_of_the_convolutions_page_is_computed_from_the_measured_rows():
    flag = "xla=--xla_cpu_experimental_ynn_fusion_type=reduce,individual_convolution,individual_dot"
    rows = [row for file in readme.RESULTS.glob("*.jsonl") for row in rows_of(file.read_text())]
    text = (readme.RESULTS / "convolutions.md").read_text()
    commits, models = re.findall(r"commit (\w+)\.", text), re.findall(r"^(\w+), batch", text, re.M)
    pairs = [(f"bp:{flag}", "bp"), (f"fdg:{flag}", "fdg"), ("torch", "bp"), ("torch-ddp", "fdg")]
    for (side, base), line in zip(pairs, re.findall(r"^\| [^|]* over [^|]* \| (\d.*) \|$", text, re.M), strict=True):
        for commit, model, cell in zip(commits, models, line.split(" | "), strict=True):
            run = [row for row in rows if row.get("model") == model and row["commit"] == commit]
            speeds = {row["side"]: row["images_per_second_windows"] for row in run}
            ratios = [a / b for a, b in zip(speeds[side], speeds[base], strict=True)]
            assert report.spread(ratios, 3) == cell, (side, commit, model)


def test_commands_are_run_and_what_they_print_is_written_beneath_them(tmp_path, monkeypatch, capsys):
    page = "# Page\n\n```\necho it \\\n    works\n```\n\n<!-- it printed -->\n\nold\n\n<!-- end -->\n\n"
    page += "- a note\n\n```\nfalse\n```\n\n<!-- it printed -->\n\nbefore\n\n<!-- end -->\n"
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    file, other = tmp_path / "page.md", tmp_path / "without_commands.md"
    file.write_text(page)
    other.write_text("# Other\n")
    assert readme.main(["nothing"]) == 2
    assert "\n  echo it works\n  false\n" in capsys.readouterr().err
    assert readme.main(["--render"]) == 0
    assert file.read_text() == page
    assert readme.main([]) == 1
    assert "1 of 2 tables" in (told := capsys.readouterr()).out and "stays: false" in told.err
    words = f"it works --json {readme.results()}"
    assert file.read_text() == page.replace("old", words)
    file.write_text(page)
    assert readme.main(["works", "--render"]) == 0
    assert file.read_text() == page.replace("old", words)
    assert other.read_text() == "# Other\n"
