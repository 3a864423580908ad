"""Checks a built site: internal links lead to existing pages and anchors, and no page loads anything from another host.

Sphinx warns about most dead links in Markdown. It does not check raw HTML, addresses of pictures, pages that it does
not make (the explorer) and anchors in generated pages. This check reads the HTML as a browser does.
"""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("link", "href"), ("source", "src"), ("object", "data")}
NOT_LOADED = {"next", "prev", "search", "index", "canonical", "author", "genindex"}  # <link rel> that is never loaded


class Page(HTMLParser):
    """The links and the anchors of a page.

    ids: its anchors. links: (address, whether a browser loads it by itself).
    """

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[str, bool]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given and (name == "id" or tag == "a")}
        for name in ("href", "src", "data"):
            if name in given and (name != "data" or tag == "object"):
                loaded = (tag, name) in LOADED and not (tag == "link" and given.get("rel", "") in NOT_LOADED)
                self.links.append((given[name], loaded))


def check(site: Path) -> list[str]:
    """The faults of the links of all pages, one line each."""
    pages = {file.resolve(): Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}
    wrong = []
    for file, page in sorted(pages.items()):
        for address, loaded in page.links:
            problem = fault(file, address, loaded, pages)
            if problem:
                wrong.append(f"{file.relative_to(site.resolve())}: {address} {problem}")
    return list(dict.fromkeys(wrong))


def fault(file: Path, address: str, loaded: bool, pages: dict[Path, Page]) -> str:
    """The fault of one link; "" if there is none."""
    parts = urlsplit(address)
    if parts.scheme == "data" or address == "#":
        return ""
    if parts.scheme or parts.netloc:
        return "is loaded from another host" if loaded else ""
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if not target.exists() or target.is_dir():
        return "does not exist"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
        return f"has no anchor {parts.fragment}"
    return ""
