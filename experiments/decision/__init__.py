"""The decisive experiment's rules, written down before its first run, and its picture."""
