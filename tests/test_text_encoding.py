"""Text files are UTF-8 wherever the commands run: no call leaves the encoding to the locale."""

import ast
from pathlib import Path

import pytest
from test_packaging import ROOT, trees, where


def unencoded(tree: ast.AST) -> list[ast.Call]:
    """Calls that read or write text in the encoding of the locale."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and text_without_encoding(node)]


def text_without_encoding(call: ast.Call) -> bool:
    method = isinstance(call.func, ast.Attribute)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if any(word.arg in ("encoding", None) for word in call.keywords):
        return False
    if name in ("read_text", "write_text"):
        return True
    if name not in ("open", "fdopen"):
        return False
    modes = [word.value for word in call.keywords if word.arg == "mode"]
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if owner in ("os", "Image", "tarfile") and name == "open":  # these take no text
        return False
    positional = call.args[0:1] if method and owner != "os" else call.args[1:2]  # path.open(mode), open(path, mode)
    modes += positional
    if not modes:
        return not method or not call.args  # open(path), path.open()
    mode = modes[0].value if isinstance(modes[0], ast.Constant) else None
    return isinstance(mode, str) and set(mode) <= set("rwaxt+")


@pytest.mark.parametrize("folder", ["fdg_jax", "examples", "experiments", "benchmarks", "tools"])
def test_every_text_file_is_opened_with_its_encoding(folder):
    files = sorted(Path(ROOT / folder).rglob("*.py"))
    assert not [where(file, call) for file, tree in trees(files) for call in unencoded(tree)]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("path.read_text()", 1),
        ("path.read_text(encoding='utf-8')", 0),
        ("path.write_text(x)", 1),
        ("path.write_text(x, encoding='utf-8')", 0),
        ("open(path)", 1),
        ("open(path, 'w')", 1),
        ("open(path, 'rb')", 0),
        ("path.open('a')", 1),
        ("path.open()", 1),
        ("path.open('wb')", 0),
        ("path.open(mode='x')", 1),
        ("os.fdopen(1, 'w')", 1),
        ("os.open(path, os.O_RDONLY)", 0),
        ("Image.open(file)", 0),
    ],
)
def test_the_search_tells_text_from_bytes(source, found):
    assert len(unencoded(ast.parse(source))) == found
