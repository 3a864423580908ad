"""`make docs`: the documentation as a site, `build/docs/index.html`, which Sphinx and MyST make from Markdown files.

Pages are Markdown files that a code host shows as well. Pages that repeat what is in the code (one per method, the
reference) are made here from the code at every build, and never committed. The site loads nothing from any network.
"""
