"""The look of pages and pictures: the style of all pages, and the module that draws all charts."""
