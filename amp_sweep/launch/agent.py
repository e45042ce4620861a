"""PyTorch's elastic agent for one cell: in a thread, quiet, on the loopback."""

import contextlib
import datetime
import logging
import os
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from amp_sweep.worker import RankJob, run_rank

LOOPBACK = "127.0.0.1"
MONITOR_S = 0.05


def register_loopback() -> None:
    """Make our one-machine rendezvous known to the elastic launcher.

    Its own stores listen on all interfaces; this one listens on the loopback only, on a port
    that the system chose.
    """
    from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
    from torch.distributed.elastic.rendezvous import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStoreInfo,
        rendezvous_handler_registry,
    )

    class Loopback(RendezvousHandler):
        def __init__(self, parameters: RendezvousParameters) -> None:
            self._run_id = parameters.run_id
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((LOOPBACK, 0))
            listener.listen(128)
            self._port = listener.getsockname()[1]
            self._store: Store = TCPStore(
                LOOPBACK,
                self._port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
                timeout=datetime.timedelta(seconds=60),
            )

        def get_backend(self) -> str:
            return "amp_sweep_loopback"

        @property
        def use_agent_store(self) -> bool:
            return True

        def next_rendezvous(self) -> RendezvousInfo:
            return RendezvousInfo(
                PrefixStore(self._run_id, self._store),
                rank=0,
                world_size=1,
                bootstrap_store_info=RendezvousStoreInfo(LOOPBACK, self._port),
            )

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            pass

        def num_nodes_waiting(self) -> int:
            return 0

        def get_run_id(self) -> str:
            return self._run_id

        def shutdown(self) -> bool:
            return True

    with contextlib.suppress(ValueError):  # registered before
        rendezvous_handler_registry.register("amp_sweep_loopback", Loopback)


@contextlib.contextmanager
def quietly() -> Iterator[Path]:
    """Keep the agent's long messages off the terminal, its changes out of our environment."""
    before = dict(os.environ)
    logger = logging.getLogger("torch.distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    with tempfile.TemporaryDirectory(prefix="amp_sweep_agent_") as folder:
        try:
            yield Path(folder)
        finally:
            logger.setLevel(level)
            for key in set(os.environ) - set(before):
                del os.environ[key]
            os.environ.update(before)


class Agent(threading.Thread):
    """The elastic agent of one cell, in a thread, so that it installs no signal handlers."""

    def __init__(self, job: RankJob, log_dir: Path) -> None:
        super().__init__(name="elastic agent", daemon=True)
        self._job = job
        self._log_dir = log_dir
        self.error: BaseException | None = None

    def run(self) -> None:
        """Start the ranks and wait for them."""
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        launch_config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self._job.local_world_size,
            run_id=uuid.uuid4().hex,
            rdzv_backend="amp_sweep_loopback",
            rdzv_endpoint=f"{LOOPBACK}:0",
            local_addr=LOOPBACK,
            max_restarts=0,
            monitor_interval=MONITOR_S,
            start_method="forkserver",
            logs_specs=DefaultLogsSpecs(log_dir=str(self._log_dir)),
        )
        try:
            elastic_launch(launch_config, run_rank)(self._job)
        except BaseException as error:  # judged by `_judge`, with all that the ranks said
            self.error = error
