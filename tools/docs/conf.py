"""Sphinx's settings. Nothing may be loaded from a network: no fonts, no MathJax, no scripts of other hosts."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from docutils import nodes  # noqa: E402

import fdg_jax  # noqa: E402

project = "fdg_jax"
version = release = fdg_jax.__version__
html_title = f"fdg_jax {version}"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
highlight_language = "none"  # a block without a language is a drawing, a command or its output
python_maximum_signature_line_length = 90
nitpicky = False  # a signature names types of JAX and Flax, which are not pages of this site
smartquotes = False  # --flags stay as they are typed

myst_heading_anchors = 4  # the anchors that a code host gives to headings
myst_links_external_new_tab = False

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_search_summary = False  # a summary would fetch pages, which a browser forbids for local files
html_extra_path = [str(ROOT / "build" / "docs-pages" / "extra")]
exclude_patterns = ["extra"]
html_theme_options = {"navigation_with_keys": True}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

LONG = 60  # characters; a longer cell needs a wide column


def mark_long_cells(app, doctree):
    """Gives long cells a class, so that site.css can keep their column wide on a narrow screen."""
    for cell in doctree.findall(nodes.entry):
        if len(cell.astext()) > LONG:
            cell["classes"].append("long")


def setup(app):
    app.connect("doctree-read", mark_long_cells)
