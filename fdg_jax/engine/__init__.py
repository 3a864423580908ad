"""Runs a schedule: the host loop, the engines around it, and what they tell of the work under way."""
