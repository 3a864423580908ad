"""What keeps the house in order between changes: pins and declared imports. Rooms: tests/test_rooms.py; ruff bans what
unpickles, private names of JAX, and text files without an encoding (pyproject.toml)."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ["requirements.txt", "requirements-cuda12.txt", "requirements-peers.txt"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEPENDENCIES, GROUPS = PROJECT["project"]["dependencies"], PROJECT["dependency-groups"]


def distribution(text: str) -> str:
    """The normalised name of the distribution a requirement is for."""
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", text)[0]).lower()  # type: ignore[index]


def pins(lock: str) -> dict[tuple[str, str], str]:
    """(name, marker) -> version of every package a requirements file lists; each must carry hashes, and no host."""
    found = {}
    for entry in re.split(r"\n(?=[A-Za-z0-9])", (ROOT / lock).read_text().replace("\\\n", " ")):
        for line in entry.splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                match = re.fullmatch(r"(\S+)==(\S+)(?: ; (.*?))?((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", line)
                assert match, f"{lock}: not pinned with == and hashed with sha256: {line[:80]}"
                found[distribution(match[1]), match[3] or ""] = match[2]
    return found


def test_whatever_is_installed_is_pinned_and_hashed():
    declared = {distribution(requirement) for requirement in DEPENDENCIES + GROUPS["dev"]}
    for lock in LOCKS:
        missing = declared - {name for name, _ in pins(lock)}
        assert not missing, f"{lock} lacks {sorted(missing)}: run `make lock`"
    assert {distribution(each) for each in GROUPS["docs"]} <= {name for name, _ in pins("requirements-docs.txt")}
    assert pins("tools/uv.txt").keys() == {("uv", "")}
    for file in ("Makefile", "tools/setup.sh"):
        text = (ROOT / file).read_text().replace("\\\n", " ")
        commands = [line for line in text.splitlines() if "pip install" in line]
        assert commands and all("--require-hashes" in line and "-r " in line for line in commands), (file, commands)


def test_all_requirements_pin_the_same_versions_and_a_card_or_pytorch_adds_only_itself():
    cpu, gpu, peers, docs = map(pins, (*LOCKS, "requirements-docs.txt"))
    assert cpu.items() <= gpu.items() and cpu.items() <= peers.items()
    added = {name for name, _ in gpu.keys() - cpu.keys()}
    assert "jax-cuda12-plugin" in added and all(name.startswith(("jax-cuda12", "nvidia-")) for name in added)
    assert "torch" in {name for name, _ in peers.keys() - cpu.keys()}
    shared = {name for name, _ in docs} & {name for name, _ in cpu}
    assert shared and {key: docs[key] for key in docs if key[0] in shared}.items() <= cpu.items()


def imports(tree: ast.AST) -> set[str]:
    """The first word of every imported module."""
    found = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    found += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in found}


@pytest.mark.slow
def test_every_import_is_a_declared_dependency():
    extra = PROJECT["project"]["optional-dependencies"]["peers"]  # which need not be installed
    allowed = {"fdg_jax": (), "examples": ("ray",), "experiments": GROUPS["dev"]}
    allowed |= dict.fromkeys(("tests", "benchmarks"), GROUPS["dev"] + extra)
    own = {*allowed, "tools", *(file.stem for file in (ROOT / "tests").rglob("*.py"))}  # pytest puts these on the path
    providers = packages_distributions()
    for folder, more in allowed.items():
        declared = {distribution(text) for text in (*DEPENDENCIES, *more)}
        for file in (ROOT / folder).rglob("*.py"):
            for top in imports(ast.parse(file.read_text())) - sys.stdlib_module_names - own - declared:
                given_by = {distribution(name) for name in providers.get(top, [])}
                assert given_by & declared, f"{file} imports {top}: see CONTRIBUTING.md, 'A dependency'"
