"""Options of earlier versions. Files of old runs have them, and they are skipped there; a user is told the way."""

from collections.abc import Sequence

from fdg_jax.errors import BadInput

RETIRED = {
    "live": "--live is gone: the progress line, TensorBoard and --track NAME show a run that goes on.",
    "replay_check": "--replay-check is gone: run twice and compare final_state_sha256 in the two files summary.json.",
    "resume_into": "--resume-into is gone: --init-from RUN begins a new run with the weights of another one.",
}


def refuse(words: Sequence[str]) -> None:
    """Raises BadInput where a command line has the flag of a retired option."""
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in RETIRED:
            raise BadInput(RETIRED[name])
