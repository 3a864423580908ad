"""`make docs`: the documentation as a site, `build/docs/index.html`, which Sphinx and MyST make of Markdown files.

Pages are Markdown files that a code host shows as well. Pages that say what the code says already (a page a method, the
reference) are made here from the code at every build, and never committed. The site asks for nothing from any network.
"""
