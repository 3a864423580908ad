"""The pages that are made from the code, and generated parts of other pages: lists of pages, the explorer."""

import os
import re
from pathlib import Path, PurePosixPath

from fdg_jax import corrections as every_correction
from fdg_jax import methods as every_method
from fdg_jax.explorer import page as explorer
from tools.docs import corrections, flags, hours, methods, reference

EXPLORER = """<iframe class="explorer" src="{}" title="The explorer: who does what, when, and which weights a gradient
belongs to" loading="lazy"></iframe>
<p><a href="{}">The explorer on a page of its own</a></p>
"""
HOME = "docs/index.md"
HEADING, TARGET = re.compile(r"^## (.*)$", re.M), re.compile(r"\]\(([^)#:\s]+)\)")
# Target of a link in the repository -> page of the site.
MEANT = {"README.md": HOME, "fdg_jax/__init__.py": "docs/reference.md"}


def pages() -> dict[str, str]:
    """The pages, by the path that they would have in the repository."""
    return methods.pages() | corrections.pages() | reference.pages()


def meant(root: Path) -> dict[str, str]:
    """{target of a link in the repository: page of the site}, with the files of methods and corrections."""
    found = dict(MEANT)
    for name, folder in (("methods", every_method.FOLDER), ("corrections", every_correction.FOLDER)):
        found |= {folder.shown(file): f"docs/{name}/{file}.md" for file in folder.names()}
    return found


def extras(folder: Path) -> None:
    """Writes pages that Sphinx does not make into the folder, which becomes a part of the site."""
    folder.mkdir(parents=True)
    (folder / "explorer.html").write_text(explorer.page({"method": "fdg", "K": 3}), encoding="utf-8")


def pictures(staged: Path) -> None:
    """Writes the pictures of the pages that are made from the code."""
    methods.pictures(staged / "docs" / "methods")


def filled(path: str, text: str) -> str:
    """A page with its marks replaced by generated text: <!-- explorer -->, <!-- flags -->, <!-- hours -->, <!-- methods
    -->."""
    up = "../" * path.count("/")
    for mark, made in (("explorer", lambda: EXPLORER.format(*[f"{up}explorer.html"] * 2)), ("flags", flags.tables),
                       ("hours", hours.table), ("methods", methods.overview)):  # fmt: skip
        if f"<!-- {mark} -->" in text:
            text = text.replace(f"<!-- {mark} -->", made())
    return text


def with_contents(pages: dict[str, str], meant: dict[str, str]) -> dict[str, str]:
    """Adds tables of contents, which the sidebar shows, to the pages. The first page lists its links by its headings.
    Every other page is listed by the page of its folder."""
    first, *parts = HEADING.split(pages[HOME])
    text, listed = first, set()
    for heading, part in zip(parts[::2], parts[1::2], strict=True):
        targets = [os.path.normpath(os.path.join(os.path.dirname(HOME), target)) for target in TARGET.findall(part)]
        found = [page for target in targets if (page := meant.get(target, target)) in pages]
        listed |= set(found)
        text += f"## {heading}\n{part.rstrip()}\n\n{toctree(found, heading)}\n"
    made = pages | {HOME: text}
    below: dict[str, list[str]] = {}
    for path in sorted(set(pages) - listed - {HOME}):
        below.setdefault(parent(path, pages), []).append(path)
    for path, found in below.items():
        made[path] = f"{made[path].rstrip()}\n\n{toctree(found)}"
    return made


def parent(path: str, pages: dict[str, str]) -> str:
    """The page that lists a page which the first page does not list: docs/methods.md for docs/methods/fdg.md, else the
    README of the nearest folder."""
    folder = PurePosixPath(path).parent
    candidates = [f"{folder}.md"] + [str(up / "README.md") for up in (folder, *folder.parents)]
    return next((each for each in candidates if each in pages and each != path), HOME)


def toctree(paths: list[str], caption: str = "") -> str:
    """A table of contents that only the sidebar shows."""
    lines = [f":caption: {caption}"] if caption else []
    lines += ["", *(f"/{path.removesuffix('.md')}" for path in paths)]
    return "\n".join(["```{toctree}", ":hidden:", *lines, "```", ""])
