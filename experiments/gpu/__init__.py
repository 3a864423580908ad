"""One command for a machine with a GPU: checks first, then speeds, then rows of Table 3, in chunks of any length.

`python -m experiments.gpu --minutes M` may be stopped and given again; what is finished is never done twice. Every part
is a file or a class here (`plan.parts` has their order), and every result is a file below `--folder`.
"""
