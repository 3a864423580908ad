"""`python -m tools.docs [FOLDER]` builds the site into FOLDER (build/docs). Warnings and dead links are errors."""

import shutil
import sys
import time
from pathlib import Path

from sphinx.cmd.build import build_main

from tools.docs import links, staging

ROOT = Path(__file__).resolve().parents[2]


def main(words: list[str]) -> int:
    """Returns the exit code: 0, or 1 if a page has an error."""
    site = Path(words[0]) if words else ROOT / "build" / "docs"
    started, staged = time.monotonic(), ROOT / "build" / "docs-pages"
    shutil.rmtree(site, ignore_errors=True)
    wrong = staging.stage(ROOT, staged)
    if not wrong:
        # -W --keep-going: all warnings are shown, and any of them fails. -E: nothing of the earlier build is used.
        where = ["-c", str(Path(__file__).parent), "-d", str(staged.parent / "docs-trees"), str(staged), str(site)]
        if build_main(["-q", "-W", "--keep-going", "-E", *where]):
            return 1
        wrong = links.check(site)
    for each in wrong:
        print(f"docs: {each}", file=sys.stderr)
    if not wrong:
        pages = sum(1 for _ in site.rglob("*.html"))
        seconds = time.monotonic() - started
        print(f"docs: {pages} pages in {seconds:.0f} s, without warnings. Open {site / 'index.html'}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
