"""Checks of what a caller passes in: a mistake is refused in one sentence before anything is computed."""
