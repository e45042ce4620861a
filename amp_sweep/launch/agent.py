"""PyTorch's elastic agent for one cell: in a thread, quiet, on the loopback where it can be."""

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

from amp_sweep.launch.nodes import ALONE, Node
from amp_sweep.worker import RankJob, run_rank

BACKEND = "amp_sweep"
MONITOR_S = 0.05
JOIN_TIMEOUT_S = 60


def register_rendezvous() -> None:
    """Make our rendezvous known to the elastic launcher.

    PyTorch's own store listens on all interfaces even for one machine, and numbers the nodes as
    they come; in this one the first node listens on a port that the system chose, on the loopback
    where it is alone, and the nodes keep their numbers.
    """
    from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
    from torch.distributed.elastic.rendezvous import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStoreInfo,
        rendezvous_handler_registry,
    )

    class Rendezvous(RendezvousHandler):
        def __init__(self, parameters: RendezvousParameters) -> None:
            self._run_id = parameters.run_id
            self._index = int(parameters.get("index"))
            self._count = int(parameters.get("count"))
            host, _, port = parameters.endpoint.rpartition(":")
            self._host, self._port = host, int(port)
            listening: dict[str, int] = {}
            if self._index == 0:
                listening["master_listen_fd"] = int(parameters.get("listener"))
            self._store: Store = TCPStore(
                self._host,
                self._port,
                is_master=self._index == 0,
                wait_for_workers=False,
                timeout=datetime.timedelta(seconds=JOIN_TIMEOUT_S),
                **listening,  # type: ignore[arg-type]
            )

        def get_backend(self) -> str:
            return BACKEND

        @property
        def use_agent_store(self) -> bool:
            return True

        def next_rendezvous(self) -> RendezvousInfo:
            return RendezvousInfo(
                PrefixStore(self._run_id, self._store),
                rank=self._index,
                world_size=self._count,
                bootstrap_store_info=RendezvousStoreInfo(self._host, self._port),
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
        rendezvous_handler_registry.register(BACKEND, Rendezvous)


@contextlib.contextmanager
def quietly() -> Iterator[Path]:
    """Keep the agent's long messages off the terminal, its changes out of our environment."""
    before = dict(os.environ)
    loggers = [logging.getLogger(name) for name in ("torch.distributed", "torch.multiprocessing")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    with tempfile.TemporaryDirectory(prefix="amp_sweep_agent_") as folder:
        try:
            yield Path(folder)
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
            for key in set(os.environ) - set(before):
                del os.environ[key]
            os.environ.update(before)


class Agent(threading.Thread):
    """The elastic agent of a node, in a thread, so that it installs no signal handlers.

    The first node's listens on `port` from its making on; the others' are given that port.
    """

    def __init__(
        self, job: RankJob, log_dir: Path, node: Node = ALONE, run_id: str = "", port: int = 0
    ) -> None:
        super().__init__(name="elastic agent", daemon=True)
        self._job = job
        self._log_dir = log_dir
        self._node = node
        self._listener = -1
        self.run_id = run_id or uuid.uuid4().hex
        self.port = port
        self.error: BaseException | None = None
        if node.index == 0:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((job.host if node.count == 1 else "", 0))
            listener.listen(128)
            self.port = listener.getsockname()[1]
            self._listener = listener.detach()

    def run(self) -> None:
        """Start this node's ranks and wait for them."""
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        node, job = self._node, self._job
        launch_config = LaunchConfig(
            min_nodes=node.count,
            max_nodes=node.count,
            nproc_per_node=job.local_world_size,
            run_id=self.run_id,
            rdzv_backend=BACKEND,
            rdzv_endpoint=f"{job.host}:{self.port}",
            rdzv_configs={"index": node.index, "count": node.count, "listener": self._listener},
            local_addr=node.host,
            max_restarts=0,
            monitor_interval=MONITOR_S,
            start_method="forkserver",
            logs_specs=DefaultLogsSpecs(log_dir=str(self._log_dir)),
        )
        try:
            elastic_launch(launch_config, run_rank)(job, os.getpid())
        except BaseException as error:  # judged by `judge`, with all that the ranks said
            self.error = error
