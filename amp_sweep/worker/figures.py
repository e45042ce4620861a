"""Some figures of a record, and why some of them are null."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Figures:
    """Metrics by name, and notes that say why some are null."""

    metrics: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)  # reason -> names

    def missing(self, names: Sequence[str], reason: str) -> None:
        """These are null for this reason."""
        self.add(Figures(dict.fromkeys(names), {reason: list(names)}))

    def notes(self) -> list[str]:
        """One line for each reason."""
        return [f"{', '.join(names)}: {reason}" for reason, names in self.reasons.items()]

    def add(self, other: "Figures") -> None:
        """These too."""
        self.metrics |= other.metrics
        for reason, names in other.reasons.items():
            known = self.reasons.setdefault(reason, [])
            known += [name for name in names if name not in known]
