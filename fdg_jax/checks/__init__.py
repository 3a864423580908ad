"""Checks of what a caller passes in, before anything is computed; the result is a `Configuration`."""
