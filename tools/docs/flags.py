"""All flags of the training commands by purpose, made from their declarations: a part of docs/running.md."""

from fdg_jax import cli
from fdg_jax.experiments import cifar
from fdg_jax.options.common import GROUPS
from fdg_jax.options.fields import spelled
from tools.docs.methods import cells


def tables() -> str:
    """For each group: a heading, its purpose, and a table of its flags."""
    parts = []
    for group, about in GROUPS.items():
        name = cli.title(group)
        parts.append(f"### {name[:1].upper()}{name[1:]}\n\n{about}\n\n| flag | what it does |\n|---|---|")
        for option in cli.of_group(group):
            value = "" if option.switch else f" {cli.metavar(option)}"
            row = f"`{spelled(option.name)}{value}`", cli.explained(option, cifar.PROGRAM).replace("<", "&lt;")
            parts.append(cells([cell.replace("|", "\\|") for cell in row]))
        parts.append("")
    return "\n".join(parts)
