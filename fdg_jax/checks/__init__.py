"""Checks of what a caller passes in, before anything is computed; what has been checked is a `Configuration`."""
