"""One cell as a job on a node: check the layout, train as anywhere else, requeue when stopped."""

import dataclasses
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amp_sweep import config, forkserver, launch, record, slurm, source, sweep
from amp_sweep.cells import STOPPED, Cell
from amp_sweep.lock import Lock, LockHeld
from amp_sweep.paths import RunPaths
from amp_sweep.record import Record


class TaskLayout(Exception):
    """The job's tasks are not one per node."""


class TimeLimit(Exception):
    """The job's time is over and it may not go back into the queue."""


def layout_problem(asked: int) -> str | None:
    """Why the tasks of this job are not one on each of the `asked` nodes; None where they are."""
    tasks = int(os.environ.get("SLURM_NTASKS", "1"))
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    if nodes != asked:
        return f"{nodes} node(s) where {asked} were asked for; set hydra.launcher.nodes={asked}"
    if tasks == nodes:
        return None
    return (
        f"{tasks} tasks on {nodes} node(s): a job has one task per node, which starts the ranks "
        f"itself; set hydra.launcher.tasks_per_node=1 (SLURM_NTASKS={tasks})"
    )


@dataclasses.dataclass(frozen=True)
class CellJob:
    """What is submitted: resolved at submission, so that the job composes nothing anew."""

    settings: dict[str, Any]
    overrides: tuple[str, ...]
    folder: str  # working directory of the submitting process
    root: str  # run directory
    code: dict[str, str]  # see `source.hashes`
    nodes: int = 1

    def __call__(self) -> None:
        """Train the cell. Raises SystemExit with the exit code."""
        from submitit.core.utils import UncompletedJobError

        try:
            self._run()
        except UncompletedJobError as error:  # from submitit's handler: no requeue is left
            message = f"{error} Raise hydra.launcher.timeout_min or max_num_timeout"
            self._end(record.TIMEOUT, TimeLimit(message))
            sys.exit(1)

    def _run(self) -> None:
        from submitit.core.utils import UncompletedJobError

        requeue: Any = signal.getsignal(_warning())  # submitit's: checkpoint(), requeue, exit
        if not Path(self.root).is_dir():
            sys.exit(f"error: this node cannot see {self.root}: is it on a shared file system?")
        os.chdir(self.folder)
        config.find_own_code()
        problem = layout_problem(self.nodes)
        if problem:
            self._end(record.FAILED, TaskLayout(problem))
            sys.exit(f"error: {problem}")
        node = self._node()
        if node.index:
            self._help(node)
            return
        cell = Cell(config.from_dict(self.settings), self.overrides)
        if cell.config.force and self._own_record() is not None:
            cell = dataclasses.replace(cell, config=dataclasses.replace(cell.config, force=False))
        try:
            code = sweep.run([cell], node=node, tables=False)
        except UncompletedJobError:
            raise
        except launch.NotPrepared as error:
            self._end(record.FAILED, launch.NotPrepared(*error.args))  # without a traceback
            sys.exit(f"error: {error}")
        except Exception as error:  # whatever it was, the submitting side reads it in the record
            self._end(record.FAILED, error)
            raise
        finally:
            if node.count > 1:
                launch.dismiss(cell.root, node)
        self._note_changed_code()
        found = self._own_record()
        has_result = found is not None and found.status in record.KEPT
        # Where the signal came when the training was over there is nothing to go back for.
        if code == STOPPED and not has_result and slurm.may_go_on():
            requeue(_warning(), None)
        sys.exit(code)

    def _node(self) -> launch.Node:
        if self.nodes == 1:
            return launch.ALONE
        begun = os.environ.get("SLURM_RESTART_COUNT", "0")
        return launch.Node(
            index=int(os.environ["SLURM_NODEID"]),
            count=self.nodes,
            attempt=f"{slurm.own_id()}.{begun}",
            host=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        )

    def _help(self, node: launch.Node) -> None:
        """Start this node's ranks when the first node says so. Raises SystemExit if it cannot."""
        settings = config.from_dict(self.settings)
        forkserver.start([settings.model.name])
        with launch.Interrupts() as interrupts:
            here = launch.prepare_here([settings], {settings.device}, lambda *_: None, node.count)
            problem = "; ".join(here.problems) or here.invalid[0]
            prepared = here.prepared[0]
            if problem or prepared is None:
                sys.exit(f"error: on {node.host}: {problem}")
            launch.help_cell(settings, Path(self.root), prepared, interrupts, node)

    def checkpoint(self) -> Any:
        """What submitit submits again: this same job, which resumes in its run directory."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _own_record(self) -> Record | None:
        """The record, where this very job has begun with the cell: now or before a requeue."""
        try:
            found = record.read_if_there(RunPaths(Path(self.root)).record)
        except record.RecordError:
            return None
        if found is None or slurm.own_id() not in found.environment.get("slurm_job_ids", []):
            return None
        return found

    def _note_changed_code(self) -> None:
        changed = source.changed(self.code)
        if changed:
            text = f"code edited between submission and start: {', '.join(changed)}"
            self._change(lambda found: found.note(text))
            sys.stderr.write(f"warning: {text}\n")

    def _end(self, status: str, error: Exception) -> None:
        def change(found: Record) -> None:
            found.status = status
            found.error = record.error_of(type(error).__name__, str(error))
            if error.__traceback__ is not None:
                found.error["traceback"] = "".join(traceback.format_exception(error))

        self._change(change)

    def _change(self, change: Callable[[Record], None]) -> None:
        paths = RunPaths(Path(self.root))
        try:
            with Lock(paths.lock):
                found = record.read(paths.record)
                change(found)
                record.write(paths.record, found)
        except (LockHeld, OSError, record.RecordError) as error:
            sys.stderr.write(f"warning: {paths.record} was not changed: {error}\n")


def _warning() -> signal.Signals:
    """The signal by which SLURM says that the job must stop soon."""
    from submitit.core.job_environment import JobEnvironment

    number: signal.Signals = JobEnvironment._usr_sig()
    return number
