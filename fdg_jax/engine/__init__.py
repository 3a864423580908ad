"""Runs a schedule: the host loop, the engines, and their reports of losses and memory."""
