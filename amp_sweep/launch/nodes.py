"""The nodes of one cell: how those behind the first learn what to start, and where.

The first node runs the cell as if it were alone: it locks, prepares, writes the record. The
others wait for its announcement, a file in the run directory, and start their share of the ranks.
"""

import contextlib
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from amp_sweep import record
from amp_sweep.messages import Plan, RankJob
from amp_sweep.paths import RunPaths

POLL_S = 0.2


@dataclasses.dataclass(frozen=True)
class Node:
    """This machine among those of a cell."""

    index: int = 0
    count: int = 1
    attempt: str = ""  # names this start of the job: what an earlier one announced is not meant
    host: str = "127.0.0.1"  # by which the other nodes reach this one

    def ranks(self, world_size: int) -> range:
        """The ranks that run here."""
        share = world_size // self.count
        return range(self.index * share, (self.index + 1) * share)


ALONE = Node()


def announce(paths: RunPaths, node: Node, **values: Any) -> None:
    """Tell the other nodes of this attempt; called on the first."""
    content = {"attempt": node.attempt, **values}
    record.write_atomic(paths.nodes, json.dumps(content))


def announced(paths: RunPaths, node: Node) -> dict[str, Any] | None:
    """What the first node said about this attempt; None while it has said nothing."""
    values = record.read_object(paths.nodes)
    if values is None or values.get("attempt") != node.attempt:
        return None
    return values


def announced_job(values: dict[str, Any]) -> RankJob:
    """The job of the ranks in an announcement."""
    fields = dict(values["job"])
    plan = dict(fields.pop("plan"))
    plan["notes"] = tuple(plan["notes"])
    return RankJob(plan=Plan(**plan), **fields)


def dismiss(root: Path, node: Node) -> None:
    """Let the other nodes go: there is nothing for them to start, or it has ended."""
    with contextlib.suppress(OSError):
        announce(RunPaths(root), node, over=True)


def wait_for_start(paths: RunPaths, node: Node, stopped: Any) -> dict[str, Any] | None:
    """The first node's announcement; None when there is nothing to do here."""
    while not stopped():
        values = announced(paths, node)
        if values is not None:
            return None if values.get("over") else values
        time.sleep(POLL_S)
    return None
