"""What launcher, preparing process and ranks tell one another: plain data. No torch here.

The launcher reads it, and so needs no torch: importing that takes longer than all else it does.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Hardware:
    """The devices that a cell can use here."""

    device_type: str  # cuda, mps, cpu
    device_names: tuple[str, ...]  # one per visible device; one name for a CPU
    natives: tuple[bool | None, ...]  # one per name: bfloat16 natively; None where it is not said
    cores: int  # that this process may use

    def native_bf16(self, devices: int) -> bool | None:
        """Whether the first `devices` of them all compute bfloat16 natively; None: not known."""
        used = self.natives[:devices]
        return None if None in used else all(used)


@dataclass(frozen=True)
class Plan:
    """Who computes what: processes, replicas and the batches they get."""

    device_type: str
    world_size: int  # processes
    replicas: int  # devices that hold the model; world_size for ddp
    backend: str | None  # of the process group; None without one
    global_batch: int
    notes: tuple[str, ...] = ()
    nodes: int = 1  # machines, with the same number of processes each

    @property
    def rank_batch(self) -> int:
        """Images per process and step."""
        return self.global_batch // self.world_size

    @property
    def device_batch(self) -> int:
        """Images per device and step."""
        return self.global_batch // self.replicas


@dataclass(frozen=True)
class Expectation:
    """Training time to expect, without start-up and evaluation."""

    total_s: float  # of all cells
    slowdown: float  # of a step in bfloat16 against one in float32


@dataclass
class Preparation:
    """What this machine says to each cell, in the order they were given."""

    # Both by what `device` asks for.
    hardware: dict[str, Hardware] = field(default_factory=dict)
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    prepared: list[str | None] = field(default_factory=list)  # folder of the data
    plans: list[Plan | None] = field(default_factory=list)
    invalid: list[str | None] = field(default_factory=list)  # why a cell cannot run here
    problems: list[str] = field(default_factory=list)  # what refuses the whole sweep
    # Where bfloat16 is asked for on a CPU that has it not natively.
    expectation: Expectation | None = None


@dataclass(frozen=True)
class RankJob:
    """What the launcher hands to each rank; everything else is in the run directory."""

    run_dir: str
    prepared: str  # folder of the prepared data
    plan: Plan
    launched_at: float  # time.monotonic() when the launcher on this machine began with the cell
    local_world_size: int
    host: str  # of the launcher's store
    resume: bool


def time_left_s(values: dict[str, Any], spent_s: float) -> float | None:
    """Seconds to the end of a training, from what rank 0 told `spent_s` after it was started.

    None while too little is done to tell. What a resumed run found done took none of that time.
    """
    done = values["epoch"] + values["step"] / values["steps"]
    here: float = done - values.get("began", 0.0)  # a run of an earlier version does not tell
    if here <= 0.02 * values["epochs"]:
        return None
    left: float = values["epochs"] - done
    return spent_s * left / here
