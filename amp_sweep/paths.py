"""Every file name in a sweep and in a run directory: nothing else builds such a path."""

from dataclasses import dataclass
from pathlib import Path

RECORD_NAME = "record.json"


@dataclass(frozen=True)
class RunPaths:
    """The files of one run, under its directory `root`."""

    root: Path

    @property
    def record(self) -> Path:
        """The only truth about the run (see `record.py`)."""
        return self.root / RECORD_NAME

    @property
    def config(self) -> Path:
        """The resolved configuration; every rank reads this file."""
        return self.root / "config.yaml"

    @property
    def overrides(self) -> Path:
        """The command-line overrides of this cell."""
        return self.root / "overrides.yaml"

    @property
    def epochs(self) -> Path:
        """A row per finished epoch, for spreadsheets."""
        return self.root / "epochs.csv"

    @property
    def steps(self) -> Path:
        """A row per logged step: the loss over all ranks and the lr."""
        return self.root / "steps.csv"

    @property
    def lock(self) -> Path:
        """Exists while a process trains this cell."""
        return self.root / "lock"

    @property
    def job(self) -> Path:
        """The SLURM job that this cell was last submitted as (see `submit.py`)."""
        return self.root / "job.json"

    @property
    def nodes(self) -> Path:
        """What the first node of a cell on several tells the others (see `launch/nodes.py`)."""
        return self.root / "nodes.json"

    @property
    def progress(self) -> Path:
        """Where rank 0 is now; exists while the run lasts."""
        return self.root / "progress.json"

    @property
    def tensorboard(self) -> Path:
        """Event files."""
        return self.root / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.root / "checkpoints"

    @property
    def last_checkpoint(self) -> Path:
        """The newest full training state; removed when the run completes."""
        return self.checkpoints / "last.pt"

    @property
    def previous_checkpoint(self) -> Path:
        """The full training state before the newest one."""
        return self.checkpoints / "previous.pt"

    @property
    def final_weights(self) -> Path:
        """Weights at the end of training."""
        return self.checkpoints / "final.pt"

    @property
    def best_weights(self) -> Path:
        """Weights of the epoch with the best test accuracy so far."""
        return self.checkpoints / "best.pt"

    def epoch_weights(self, epoch: int) -> Path:
        """Weights after `epoch` (counted from 1), kept with `checkpoint.every_epoch`."""
        return self.checkpoints / f"epoch-{epoch:03d}.pt"

    def all_epoch_weights(self) -> list[Path]:
        """Those of all epochs that are there."""
        return sorted(self.checkpoints.glob("epoch-*.pt"))

    def log(self, rank: int) -> Path:
        """Log of one rank."""
        return self.root / ("train.log" if rank == 0 else f"rank{rank}.log")

    def ending(self, rank: int) -> Path:
        """How far one rank came and how it ended (see `worker/process.py`); a JSON object.

        `kind` is a status, `error` what it raised. `trained` is there once the training is over
        and stored, `probed` once the probes after it are. Gone when the launcher has concluded.
        """
        return self.root / f"rank{rank}.ending.json"

    def endings(self) -> list[Path]:
        """Those of all ranks that have said something."""
        return sorted(self.root.glob("rank*.ending.json"))
