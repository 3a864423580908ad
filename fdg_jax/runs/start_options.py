"""The flags about one start of a training command: where its options are read, what it shows, traces and tracks, and
how many runs it makes. They are no options of the run, so config.json has none of them."""

import dataclasses

ABOUT = "About this start of the command. config.json has none of them, and --resume needs none of them again."
HELP = {
    "config": "Read options from a file in TOML, YAML or JSON, by their names in config.json (train_size, train-size). "
    "The command line goes before the file, the file before the defaults. A run's own config.json is taken, too: "
    "its facts (versions, devices, ...) and its run_dir are skipped, and what the run had left open (split, engine, "
    "...) is decided again.",
    "dry_run": "Print shapes, split, predicted memory, measured time and total of the run, and end. It computes a few "
    "steps for the time. Nothing is written.",
    "profile": "Trace N batches, once everything is compiled, into <run-dir>/profile. The run computes the same bits.",
    "quiet": "Print only warnings, errors and the last line.",
    "track": "Send the curves to these trackers as well, through their own clients: wandb, mlflow, trackio. A run that "
    "is resumed goes on in the trackers that it had; none: in no tracker.",
    "seeds": "One run for each of these seeds, e.g. 0,1,2: see --sweep.",
    "sweep": "One run for each value, e.g. beta=0.2,0.5,1; for each combination where several are given "
    "(split=3,7;2,5: values that have commas). They go into <run-dir>/<name>, one after the other. Stopped and given "
    "again, the command goes on. At its end it writes the table sweep.md.",
    "jobs": "With --seeds or --sweep: so many runs at the same time, each on a core of its own.",
}
METAVARS = {
    "config": "FILE",
    "profile": "N",
    "track": "NAME,NAME",
    "seeds": "0,1,2",
    "sweep": "NAME=VALUES",
    "jobs": "N",
}
SHOWN = {"profile": "0, no trace", "track": "none", "seeds": "one run", "sweep": "one run"}


@dataclasses.dataclass(frozen=True)
class Start:
    """The flags by their names, as given or by default."""

    config: str | None = None
    dry_run: bool = False
    profile: int = 0
    quiet: bool = False
    track: str | None = None
    seeds: str | None = None
    sweep: tuple[str, ...] = ()
    jobs: int = 1

    @property
    def several(self) -> bool:
        """Whether several runs are asked for."""
        return self.seeds is not None or bool(self.sweep)

    @property
    def swept(self) -> frozenset[str]:
        """The options that differ from run to run."""
        names = {text.partition("=")[0].lstrip("-").replace("-", "_") for text in self.sweep}
        return frozenset(names | ({"seed"} if self.seeds is not None else set()))


ONE_RUN = Start()  # with no such flag
FIELDS = {field.name: field for field in dataclasses.fields(Start)}
