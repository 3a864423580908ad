"""What keeps the house in order between changes: pins, declared imports, nothing unsafe. Rooms: tests/test_rooms.py.

These tests read the source as text (ast), so a rule broken in a branch that never runs is found too.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = sorted((ROOT / "fdg_jax").rglob("*.py"))
OTHERS = ("tests", "benchmarks", "examples", "experiments", "tools")
EVERYTHING = PACKAGE + [file for folder in OTHERS for file in sorted((ROOT / folder).rglob("*.py"))]
LOCKS = ["requirements.txt", "requirements-cuda12.txt", "requirements-peers.txt"]


def where(file: Path, node: ast.AST) -> str:
    return f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', '?')}"


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), str(file))


def trees(files: list[Path]) -> Iterator[tuple[Path, ast.Module]]:
    for file in files:
        yield file, tree_of(file)


def imports(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Every imported module's full name; of `from a import b` both `a` and `a.b`, as b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write imports in full, as these tests read them"
            yield node, node.module or ""
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def distribution(text: str) -> str:
    """The normalised name of the distribution a requirement is for."""
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", text)[0]).lower()  # type: ignore[index]


def pins(lock: str) -> dict[tuple[str, str], str]:
    """(name, marker) -> version of every package a requirements file lists; each must carry hashes."""
    found = {}
    for entry in re.split(r"\n(?=[A-Za-z0-9])", (ROOT / lock).read_text().replace("\\\n", " ")):
        lines = [line for line in entry.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if not lines:
            continue
        assert len(lines) == 1, f"{lock}: not understood: {lines}"
        match = re.fullmatch(r"(\S+)==(\S+)(?: ; (.*?))?((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", lines[0])
        assert match, f"{lock}: not pinned with == and hashed with sha256: {lines[0][:80]}"
        found[distribution(match[1]), match[3] or ""] = match[2]
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_pinned_and_hashed(lock):
    names = {name for name, _ in pins(lock)}
    assert len(names) > 50  # what JAX, Flax, Orbax and TFDS bring along
    declared = project()["project"]["dependencies"] + project()["dependency-groups"]["dev"]
    missing = {distribution(requirement) for requirement in declared} - names
    assert not missing, f"{lock} lacks {sorted(missing)}: run `make lock`"


def test_whatever_pip_installs_is_pinned_and_hashed():
    assert pins("tools/uv.txt").keys() == {("uv", "")}
    for file in ("Makefile", "tools/setup.sh"):
        text = (ROOT / file).read_text().replace("\\\n", " ")
        commands = [line for line in text.splitlines() if "pip install" in line]
        assert commands and all("--require-hashes" in line and "-r " in line for line in commands), (file, commands)


def test_what_make_docs_installs_is_pinned_and_hashed_and_has_no_other_version_of_anything():
    own, docs = pins("requirements.txt"), pins("requirements-docs.txt")
    declared = {distribution(requirement) for requirement in project()["dependency-groups"]["docs"]}
    assert declared <= {name for name, _ in docs}
    shared = {name for name, _ in docs} & {name for name, _ in own}
    assert shared and {key: docs[key] for key in docs if key[0] in shared}.items() <= own.items()


@pytest.mark.parametrize("lock", [*LOCKS, "requirements-docs.txt", "tools/uv.txt"])
def test_requirements_name_no_host_and_no_index(lock):
    text = (ROOT / lock).read_text().lower()
    for word in ("://", "index-url", "find-links", "trusted-host", "file:", " @ "):
        assert word not in text, f"{lock} contains {word!r}"


def test_python_3_11_gets_the_last_jax_it_can_run_and_later_ones_a_newer_jax():
    versions = {marker: pin for (name, marker), pin in pins("requirements.txt").items() if name == "jax"}
    assert versions.pop("python_full_version < '3.12'") == "0.10.2"
    (newest,) = versions.values()
    assert tuple(map(int, newest.split("."))) > (0, 10, 2)


def test_gpu_requirements_pin_the_same_versions_and_add_only_the_card():
    cpu, gpu = pins("requirements.txt"), pins("requirements-cuda12.txt")
    assert cpu.items() <= gpu.items()
    added = {name for name, _ in gpu.keys() - cpu.keys()}
    assert "jax-cuda12-plugin" in added
    assert not [name for name in added if not name.startswith(("jax-cuda12", "nvidia-"))]


def test_requirements_of_the_peers_pin_the_same_versions_and_add_pytorch():
    own, peers = pins("requirements.txt"), pins("requirements-peers.txt")
    assert own.items() <= peers.items()
    assert "torch" in {name for name, _ in peers.keys() - own.keys()}


@pytest.mark.parametrize("folder", ["fdg_jax", "tests", "benchmarks", "examples", "experiments"])
def test_every_import_is_a_declared_dependency(folder):
    declared = {distribution(text) for text in project()["project"]["dependencies"]}
    if folder not in ("fdg_jax", "examples"):
        declared |= {distribution(text) for text in project()["dependency-groups"]["dev"]}
    own = {"fdg_jax", "tests", "benchmarks", "experiments", "tools"}
    own |= {file.stem for file in (ROOT / "tests").rglob("*.py")}  # pytest puts their folders on the path
    if folder in ("tests", "benchmarks"):  # of the optional extra, which need not be installed
        own |= {distribution(text) for text in project()["project"]["optional-dependencies"]["peers"]}
    providers = packages_distributions()
    for file, tree in trees(sorted((ROOT / folder).rglob("*.py"))):
        for node, module in imports(tree):
            top = module.split(".")[0]
            if top in sys.stdlib_module_names or top in own:
                continue
            given_by = {distribution(name) for name in providers.get(top, [])}
            assert given_by & declared, (
                f"{where(file, node)} imports {top} ({', '.join(given_by) or 'not installed'}), "
                "which pyproject.toml does not declare: see CONTRIBUTING.md, 'A dependency'"
            )


UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


def unsafe(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    for node, module in imports(tree):
        if module.split(".")[0] in UNSAFE_MODULES:
            yield node, f"import of {module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
                yield node, f"{node.func.id}()"
            for word in node.keywords:
                if word.arg == "allow_pickle" and not (
                    isinstance(word.value, ast.Constant) and word.value.value is False
                ):
                    yield node, "allow_pickle"


def test_nothing_is_unpickled_or_evaluated():
    assert not [(where(file, node), what) for file, tree in trees(EVERYTHING) for node, what in unsafe(tree)]


def private_jax(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Names below jax or jaxlib that begin with an underscore (dunders such as __version__ are public)."""
    aliases = {"jax": "jax", "jaxlib": "jaxlib"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom):
            aliases |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    used = [*imports(tree)]
    for node in ast.walk(tree):
        parts, value = [], node
        while isinstance(value, ast.Attribute):
            parts.append(value.attr)
            value = value.value
        if parts and isinstance(value, ast.Name) and value.id in aliases:
            used.append((node, ".".join([aliases[value.id], *reversed(parts)])))
    for node, name in used:
        first, *rest = name.split(".")
        if first in ("jax", "jaxlib") and any(p.startswith("_") and not p.startswith("__") for p in rest):
            yield node, name


def test_private_jax_names_are_used_in_one_module_only():
    files = [file for file in EVERYTHING if file != ROOT / "fdg_jax" / "machine" / "jax_internals.py"]
    assert not [(where(file, node), name) for file, tree in trees(files) for node, name in private_jax(tree)]


@pytest.mark.parametrize(
    ("source", "guard"),
    [
        ("import pickle", unsafe),
        ("from pickle import loads", unsafe),
        ("eval('1')", unsafe),
        ("import numpy as np\nnp.load('x', allow_pickle=True)", unsafe),
        ("import jax._src.core", private_jax),
        ("from jax import _src", private_jax),
        ("import jax\njax._src.config", private_jax),
        ("import jax.numpy as jnp\njnp._private", private_jax),
        ("from jax import tree_util as t\nt._registry", private_jax),
    ],
)
def test_the_guards_see_what_they_forbid(source, guard):
    assert [*guard(ast.parse(source))]


def test_the_host_loop_imports_nothing_but_collections_and_types():
    tree = ast.parse((ROOT / "fdg_jax" / "engine" / "host_loop.py").read_text())
    assert {module.split(".")[0] for _, module in imports(tree)} <= {"collections", "typing", "types"}


ANSWER_AT_ONCE = ["fdg_jax", "fdg_jax.schedule", "fdg_jax.errors", "fdg_jax.methods", "fdg_jax.launch.__main__"]


@pytest.mark.parametrize("module", ANSWER_AT_ONCE)
def test_importing_what_answers_at_once_does_not_import_jax(module):
    code = f"import sys, {module}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


TARGETS = ["setup", "demo", "test", "test-slow", "check", "docs", "doctest", "bench", "clean", "help"]


@pytest.mark.parametrize("target", TARGETS)
def test_make_has_every_target_that_scripts_rely_on(target):
    assert subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True).returncode == 0


def test_ci_runs_what_a_person_runs():
    ci = ROOT / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    text = ci.read_text()
    assert "set -euo pipefail" in text
    for target in ("make check", "make docs", "make doctest", "make test-slow"):
        assert re.search(rf"^within_budget {target}$", text, re.M)


def test_a_script_anywhere_finds_the_package(tmp_path):
    """Set up before this was so: nothing is installed again, and yet the repository is on the path."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "setup.sh", tmp_path / "tools")
    packages = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    for folder in (packages, tmp_path / ".venv" / "bin", tmp_path / ".venv" / "requirements"):
        folder.mkdir(parents=True)
    for file in (tmp_path / "requirements.txt", tmp_path / ".venv" / "requirements" / "requirements.txt"):
        file.touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text("#!/bin/sh\necho 3.11.9\n")
    python.chmod(0o755)
    for _ in range(2):
        assert subprocess.run(["sh", "tools/setup.sh"], cwd=tmp_path).returncode == 0
    code = "import site, sys; site.addsitedir(sys.argv[1]); print(sys.path[-1])"
    shown = subprocess.run([sys.executable, "-S", "-c", code, packages], capture_output=True, text=True).stdout
    assert Path(shown.splitlines()[-1]).samefile(tmp_path)


def fake_python(folder: Path, says: str, has_venv: bool) -> None:
    """A `python3` that answers the two questions tools/setup.sh asks before it makes anything."""
    script = f'#!/bin/sh\ncase "$2" in *ensurepip*) exit {int(not has_venv)};; *) echo {says};; esac\n'
    (folder / "python3").write_text(script)
    (folder / "python3").chmod(0o755)


@pytest.mark.parametrize(
    ("version", "has_venv", "expected"),
    [
        ("3.9.18", True, "needs Python 3.11 or newer; python3 is 3.9.18."),
        ("3.10.13", True, "needs Python 3.11 or newer; python3 is 3.10.13."),
        ("2.7.18", True, "needs Python 3.11 or newer; python3 is 2.7.18."),
        ("3.11.9", False, "Python's venv module is missing from python3."),
    ],
)
def test_setup_says_in_one_sentence_what_is_wrong_with_the_python(tmp_path, version, has_venv, expected):
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "setup.sh", tmp_path / "tools")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("dirname", "sed", "sh"):
        os.symlink(str(shutil.which(name)), programs / name)
    fake_python(programs, version, has_venv)
    done = subprocess.run(
        ["sh", "tools/setup.sh"], cwd=tmp_path, env={"PATH": str(programs)}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("setup: ")
    assert done.stderr.count("\n") == 1
    assert expected in done.stderr
    assert not (tmp_path / ".venv").exists()
