"""The server that forks ranks: it imports once what every rank needs. No torch here.

Start it first: it imports in its own process while this one still composes and checks.
"""

import multiprocessing
from multiprocessing import forkserver

PRELOAD = (
    "amp_sweep.train",  # a forked process runs the main module again
    "amp_sweep.worker",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.utils.tensorboard",
)


def start() -> None:
    """Start the server; harmless to call again."""
    multiprocessing.set_forkserver_preload(list(PRELOAD))
    forkserver.ensure_running()
