"""The cache of compiled programs: pruned, and used only where nobody else could have written it."""

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from fdg_jax.machine import compile_cache


def test_programs_that_nobody_used_for_long_leave_the_cache(tmp_path):
    days = 24 * 3600
    now = compile_cache.time.time()
    for folder, name, read, written in [
        ("xla-1-a", "old", 31, 31), ("xla-1-a", "read", 1, 90), ("xla-2-b", "new", 90, 1), ("other", "theirs", 90, 90)
    ]:  # fmt: skip
        file = tmp_path / folder / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
        os.utime(file, (now - read * days, now - written * days))
    compile_cache.prune(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["new", "read", "theirs"]
    compile_cache.prune(tmp_path / "none")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners")
@pytest.mark.parametrize(("spoil", "said"), [
    (lambda root, patch: None, ""),
    (lambda root, patch: (root / "fdg_jax").chmod(0o777), "other users can write in "),
    (lambda root, patch: patch.setattr(compile_cache.os, "geteuid", lambda: 12345), "other users can write in "),
])  # fmt: skip
def test_a_cache_of_programs_that_others_could_have_written_is_not_used(spoil, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (compile_cache.SWITCH, "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    settings: dict = {}
    monkeypatch.setattr(compile_cache, "jax", SimpleNamespace(config=SimpleNamespace(update=settings.__setitem__)))
    before = os.umask(0)
    try:
        compile_cache.enable()
    finally:
        os.umask(before)
    made = [tmp_path / "cache" / "fdg_jax", Path(settings["jax_compilation_cache_dir"])]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700, 0o700]
    settings.clear()
    spoil(tmp_path / "cache", monkeypatch)
    compile_cache.enable()
    err = capsys.readouterr().err
    assert bool(settings) == (said == "")
    assert said in err and err.count("\n") == bool(said) and err.startswith("warning: " if said else "")
