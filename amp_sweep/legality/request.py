"""The check of a whole request, whichever machine runs it: its values, then the rules."""

from collections.abc import Sequence
from typing import Any

from amp_sweep.config import RunConfig
from amp_sweep.legality import values
from amp_sweep.legality.rules import RULES, processes


def check(config: RunConfig, overrides: Sequence[str] = ()) -> list[str]:
    """Everything wrong with the request, each in one line; empty when it is legal."""
    problems = values.check(_flat(config))
    if any(item.lstrip("+").startswith("model.width=") for item in overrides) and (
        config.model.name != "alexnet"
    ):
        problems.append(f"model.width belongs to AlexNet; model.name={config.model.name} has none")
    if not config.name.strip() or config.name in (".", "..") or "/" in config.name:
        problems.append(f"name={config.name!r}: must be a folder name")
    if problems:
        return problems
    return [
        rule.reason.format(c=config, processes=processes(config))
        for rule in RULES
        if rule.broken(config)
    ]


def _flat(config: RunConfig) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in vars(config).items():
        if hasattr(value, "__dataclass_fields__"):
            flat.update({f"{key}.{name}": item for name, item in vars(value).items()})
        else:
            flat[key] = value
    return flat
