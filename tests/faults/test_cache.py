"""Compiled programs that are kept between runs: what a killed process left of one costs time and changes no number."""

import shutil

import pytest
from fault_runs import Config, Process, assert_same


@pytest.mark.slow
def test_programs_that_were_cut_off_are_compiled_again(whole, cache, tmp_path, tell):
    config = Config("bp", 1, "pipeline")
    run, own = whole(config), tmp_path / "cache"
    shutil.copytree(cache, own)
    programs = [file for file in own.rglob("*-cache") if file.stat().st_size]
    for n, file in enumerate(programs):
        content = file.read_bytes()
        file.write_bytes([b"", content[: len(content) // 2], content[:-1]][n % 3])
    with Process(tmp_path / "run", config, own) as process:
        assert process.finish() == 0, process.told()
    assert "Traceback" not in process.told()
    assert_same(tmp_path / "run", run.path)
    assert len(programs) > 10
    tell(f"{len(programs)} programs cut off: the same run")
