"""Command lines with the flags about a start, and files of options: what tests/faults/test_options.py draws from."""

import json

from hypothesis import strategies as st

from fdg_jax.config import FIELDS, OF_START, SWITCHES
from fdg_jax.options.fields import spelled

POOLS = {
    "profile": "0 1 3 -1 x 1_0",
    "track": "none none,wandb wand , wandb",
    "seeds": "0,1 1 0,x , 0,0 -1,2 7",
    "jobs": "1 1 2 0 -1 999 x",
    "sweep": "beta=0.2,0.5 K=1,2 K=1,2,3 bta=1 beta beta= =1 seed=1,2 split=1;2 drain=true,false drain=2 run_dir=a,b "
    "model=resnet8,wrn10_1 lr=1,2 beta=1.5,2 learning-rate=0.1,0.05 --beta=1,0.5 method=bp,fdg",
    "config": "options.toml options.toml options.toml options.yaml options.yaml options.json options.json file there "
    "run/config.json run/config.json nowhere.toml damaged/config.json options.ini",
}
STARTS = {name: words.split() for name, words in POOLS.items()}
STRAY_KEYS = ("learnin_rate", "lr", "quiet", "sweep", "versions", "asked", "k", "K K", "[recipe]", "<<", "", "ünï")
JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})
GROUPS = ([], ["config"], ["config"], ["config", "profile"], ["sweep"], ["seeds", "jobs"], ["sweep", "seeds", "config"])


@st.composite
def starts(draw, plain, values):
    """(words, the files of options by name): a plain small run, in part from a file, with flags about its start.

    plain: its options. values(name): a strategy for the words that an option may be given.
    """
    options = dict(plain, run_dir="fresh", K=draw(st.sampled_from("1223")))
    for name in draw(st.lists(st.sampled_from(sorted(FIELDS.keys() - SWITCHES)), max_size=2)):
        options[name] = draw(values(name))
    flags = draw(st.sampled_from(GROUPS)) + draw(st.lists(st.sampled_from(sorted(STARTS)), max_size=1))
    said: list[str] = []
    for name in dict.fromkeys(flags):
        said += [spelled(name), draw(st.sampled_from(STARTS[name]))]
    said += draw(st.sampled_from([[]] * 3 + [["--quiet"], ["--dry-run"], ["--dry_run", "--quiet"], ["--lr", "0.1"]]))
    chosen = said[said.index("--config") + 1] if "--config" in said else ""
    in_file = {name: value for name, value in options.items() if chosen.startswith("options") and draw(st.booleans())}
    said += [word for name in options.keys() - in_file.keys() for word in (spelled(name), options[name])]
    if chosen == "run/config.json":
        said = [word for word in said if word not in ("--dataset", "digits")] if draw(st.booleans()) else said
    return said, {chosen: draw(contents(chosen, in_file))} if chosen.startswith("options") else {}


@st.composite
def contents(draw, name, options):
    """The text of a file with these options: mostly whole, sometimes with another key, another value or an end too
    early."""
    entries: dict = {key.replace("_", "-") if draw(st.booleans()) else key: typed(options[key]) for key in options}
    if draw(st.integers(0, 3)) == 0:
        entries[draw(st.sampled_from([*STRAY_KEYS, *FIELDS, *OF_START]))] = draw(JSON)
    if name.endswith(".json"):
        text = json.dumps(entries, indent=draw(st.sampled_from([None, 2])))
    elif name.endswith(".yaml"):
        bare = {key: value if isinstance(value, str) else json.dumps(value) for key, value in entries.items()}
        text = "".join(f"{key}: {value}\n" for key, value in bare.items())
    else:
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in entries.items())
    return text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 9)) == 0 else text


def typed(word):
    """A word as a number where it is one."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
