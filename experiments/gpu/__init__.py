"""One command for a machine with a GPU: checks first, then speeds, then rows of Table 3, in chunks of any length.

`python -m experiments.gpu --minutes M` may be stopped and called again; finished steps are never repeated. `steps.py`
has the list of steps, `loop.py` the loop that does them. Every result is a file below `--folder`.
"""
