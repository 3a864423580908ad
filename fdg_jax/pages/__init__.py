"""How pages and pictures look: one style for pages, one drawer for charts."""
