"""The server that forks ranks: it imports once what every rank needs. No torch here.

Start it first: it imports in its own process while this one still composes and checks.
"""

import multiprocessing
from multiprocessing import forkserver

PRELOAD = (
    "hydra",  # a forked process runs the main module again, which imports it
    "amp_sweep.worker",
    "amp_sweep.data.pipeline",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.utils.tensorboard",
)


def start() -> None:
    """Start the server; harmless to call again."""
    multiprocessing.set_forkserver_preload(list(PRELOAD))
    forkserver.ensure_running()
