"""The keys of a command line's overrides, before Hydra composes them."""

import dataclasses
from collections.abc import Sequence

from amp_sweep.config import RunConfig
from amp_sweep.legality.values import CHOICES, near

# Hydra's options after which arguments are no overrides, or those of another configuration.
NOT_OUR_OVERRIDES = frozenset(
    {"-sc", "--shell-completion", "-cn", "--config-name", "-cp", "--config-path"}
)


def check_arguments(arguments: Sequence[str]) -> list[str]:
    """What is wrong with the keys of command-line overrides, before Hydra composes them.

    Hydra ends with a traceback for a group set to null, and does not say which keys there are.
    Additions (`+key`), deletions (`~key`), options and Hydra's own keys are left to it, and so is
    everything where an option says that the arguments are no overrides of our configuration.
    """
    if any(argument.split("=")[0] in NOT_OUR_OVERRIDES for argument in arguments):
        return []
    sections = {
        item.name: tuple(field.name for field in dataclasses.fields(item.type))
        for item in dataclasses.fields(RunConfig)
        if isinstance(item.type, type) and dataclasses.is_dataclass(item.type)
    }
    top = tuple(item.name for item in dataclasses.fields(RunConfig))
    problems = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not key.replace(".", "").replace("_", "").isalnum():
            continue
        first, _, rest = key.partition(".")
        if first == "hydra":
            continue
        if first not in top:
            problems.append(
                f"{argument}: there is no key {first!r}{near(first, top)}; "
                f"there are {', '.join(top)}"
            )
        elif rest and rest not in sections.get(first, ()):
            keys = sections.get(first, ())
            problems.append(
                f"{argument}: {first} has no key {rest!r}{near(rest, keys)}; "
                f"it has {', '.join(keys) or 'none'}"
            )
        elif (
            not rest
            and (first in sections or first == "experiment")
            and set(value.split(",")) & {"null", ""}
        ):
            choices = CHOICES.get(f"{first}.name")
            hint = f"choose one of {', '.join(choices)}" if choices else "choose one by name"
            problems.append(f"{argument}: null is no choice; {hint}")
    return problems
