"""Collects the pages of the site in one folder for Sphinx: the pages of the repository and those made from the code.

Most links stay as they are on a code host. Three kinds change: a link to a method's file leads to the method's page, a
link to any other Python file to a page that shows the file, and a link to README.md to the first page.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from tools.docs import equations, made

COPIED = ("docs/**/*.md", "experiments/**/*.md", "benchmarks/**/*.md", "examples/README.md", "CHANGELOG.md",
          "CONTRIBUTING.md")  # fmt: skip
OF_A_FILE = ("docs/methods/", "docs/corrections/")
# Files that a page of the site shows, where a page of the repository links to them.
LANGUAGES = {".py": "python", ".js": "javascript", ".css": "css", ".html": "html", ".sh": "sh", "": "none"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^(`{3,})([^\n]*)\n(.*?)^\1$", re.S | re.M)


def stage(root: Path, staged: Path) -> list[str]:
    """Fills the folder anew. Returns the faults of links, a line each."""
    shutil.rmtree(staged, ignore_errors=True)
    files = [file for pattern in COPIED for file in sorted(root.glob(pattern))]
    pages = {str(file.relative_to(root)): file.read_text(encoding="utf-8") for file in files}
    meant = made.meant(root)
    pages = made.with_contents(pages | made.pages(), meant)
    made.extras(staged / "extra")
    made.pictures(staged)
    site = Links(root, staged, set(pages), meant)
    for path, text in pages.items():
        text = outside_code(text, lambda part, path=path: LINK.sub(lambda found: site.link(path, found), part))
        site.write(path, equations.shown(made.filled(path, text)))
    site.write_sources()
    return site.wrong


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Applies `change` to the text outside of code blocks."""
    parts, end = [], 0
    for block in FENCE.finditer(text):
        parts += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(text[end:])])


class Links:
    """The targets of links on the site.

    root: the repository. staged: the folder that Sphinx reads. pages: all pages, by their path in the repository.
    wrong: links to files that do not exist.
    """

    def __init__(self, root: Path, staged: Path, pages: set[str], meant: dict[str, str]):
        self.root, self.staged, self.pages, self.meant = root, staged, pages, meant
        self.sources: set[str] = set()
        self.wrong: list[str] = []

    def at(self, path: str) -> str:
        """A page's path in the folder that Sphinx reads. The first page is at its top."""
        return "index.md" if path == made.HOME else path

    def link(self, page: str, found: re.Match[str]) -> str:
        """A link in its form on the site. Pictures and other files that it shows are copied there."""
        address, _, anchor = found[2].partition("#")
        if not address or ":" in address:
            return found[0]
        target = os.path.normpath(os.path.join(os.path.dirname(page), address))
        if not page.startswith(OF_A_FILE):  # such a page links to the file that it is about
            target = self.meant.get(target, target)
        if target not in self.pages and not (self.staged / target).is_file():
            if not (self.root / target).is_file():
                self.wrong.append(f"{page}: {found[2]} does not exist")
                return found[0]
            if Path(target).suffix in LANGUAGES:
                self.sources.add(target)
                target = f"source/{target}.md"
            else:
                (self.staged / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.root / target, self.staged / target)
        way = os.path.relpath(self.at(target), os.path.dirname(self.at(page)) or ".")
        return f"{found[1]}{way}{'#' * bool(anchor)}{anchor}{found[3]}"

    def write(self, path: str, text: str) -> None:
        """Writes a page."""
        file = self.staged / self.at(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def write_sources(self) -> None:
        """Writes a page for each file that is no page itself and that a page links to."""
        for path in sorted(self.sources):
            code, language = (self.root / path).read_text(encoding="utf-8"), LANGUAGES[Path(path).suffix]
            text = f"---\norphan: true\nnosearch: true\n---\n\n# {path}\n\n``````{language}\n{code}\n``````\n"
            self.write(f"source/{path}.md", text)
