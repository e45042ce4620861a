"""Start and supervise the ranks of one cell, and turn any ending into a status.

A forkserver has imported everything, so that a cell begins in fractions of a second in fresh
processes: PyTorch's elastic agent, and the ranks that it starts. This process watches progress,
endings and interrupts, and alone decides when ranks must go. It needs no torch, never touches
CUDA and never joins a process group.
"""

from amp_sweep.launch.cell import conclude_if_trained, help_cell, record_for, run_cell
from amp_sweep.launch.interrupts import Interrupted, Interrupts
from amp_sweep.launch.nodes import ALONE, Node, dismiss
from amp_sweep.launch.preparing import NotPrepared, prepare_here

__all__ = [
    "ALONE",
    "Interrupted",
    "Interrupts",
    "Node",
    "NotPrepared",
    "conclude_if_trained",
    "dismiss",
    "help_cell",
    "prepare_here",
    "record_for",
    "run_cell",
]
