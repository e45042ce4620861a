"""The server that forks ranks: it imports once what every rank needs. No torch here.

Start it first: it imports in its own process while this one still composes and checks.
"""

import multiprocessing
import signal
import threading
from multiprocessing import forkserver, resource_tracker

PRELOAD = (
    "hydra",  # a forked process runs the main module again, which imports it
    "amp_sweep.worker",
    "amp_sweep.data.pipeline",
    "torch.distributed.elastic.multiprocessing.api",
    "torch._dynamo",  # which the first optimizer imports
    "torch.utils.tensorboard",
)


# SLURM sends these to every process of a job, a terminal's end to every process of its session.
# They are meant for the launcher: were the server to die of one, its ranks would die unsaved.
FOR_THE_LAUNCHER = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


# Takes longer than all the others; only its own networks need it.
CLASSIFIERS = "torchvision"


def start(*, classifiers: bool = True) -> None:
    """Start the server; harmless to call again. `classifiers`: torchvision's may be trained."""
    multiprocessing.set_forkserver_preload([*PRELOAD, *([CLASSIFIERS] if classifiers else [])])
    if threading.current_thread() is not threading.main_thread():
        forkserver.ensure_running()
        return
    # What is ignored here is ignored there too: that passes through fork and exec.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in FOR_THE_LAUNCHER}
    try:
        resource_tracker.ensure_running()
        forkserver.ensure_running()
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: it was set outside of Python
                signal.signal(number, handler)
