"""Runs a schedule: the host loop, the two engines around it, and what they report of losses and memory."""
