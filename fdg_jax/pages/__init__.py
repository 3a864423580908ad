"""The look of pages and pictures: one style for pages, one module that draws charts."""
