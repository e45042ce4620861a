"""How devices share a batch: the plan, the wrapping, and what ranks tell one another."""

import dataclasses
import datetime
import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DataParallel, DistributedDataParallel

from amp_sweep.config import ParallelConfig
from amp_sweep.messages import Plan

# A rank that is told to stop waits so long before each step for the others to say where they are,
STOP_WAIT_S = 0.1
# and so long in all: the nodes of a job may be told seconds apart.
STOP_TIMEOUT_S = 30.0


class PlanError(Exception):
    """The batch cannot be shared as asked on these devices; the message is for a person."""


def _auto_devices(batch: int, batch_mode: str, visible: int) -> int:
    """The largest number of visible devices that the batch divides into."""
    if batch_mode == "per_device":
        return visible
    return next(count for count in range(visible, 0, -1) if batch % count == 0)


def make_plan(
    config: ParallelConfig, batch_size: int, batch_mode: str, device_type: str, visible: int
) -> Plan:
    """The plan for one cell on a machine with `visible` devices. Raises PlanError."""
    notes: list[str] = []
    if config.name == "none":
        devices = 1
    elif isinstance(config.devices, int):
        devices = config.devices
    elif device_type == "cuda":
        devices = _auto_devices(batch_size, batch_mode, visible)
    else:
        devices = 2 if config.name == "ddp" else 1
    global_batch = batch_size * devices if batch_mode == "per_device" else batch_size
    if global_batch % devices:
        raise PlanError(
            f"data.batch_size={batch_size} is the global batch and does not divide by {devices} "
            f"devices (parallel={config.name}); choose a multiple of {devices} or parallel.devices"
        )
    if config.devices == "auto" and 1 < devices < visible:
        notes.append(
            f"parallel.devices=auto: {devices} of {visible} visible devices, the most that divide "
            f"the batch of {global_batch}"
        )
    if config.name == "dp" and devices == 1:
        notes.append("no effect here: dp without two GPUs is the plain module")
    if config.name == "ddp" and devices == 1:
        notes.append("no effect here: ddp has one process")
    backend = None
    if config.name == "ddp":
        backend = config.backend
        if backend == "auto":
            backend = "nccl" if device_type == "cuda" else "gloo"
    return Plan(
        device_type=device_type,
        world_size=devices if config.name == "ddp" else 1,
        replicas=devices,
        backend=backend,
        global_batch=global_batch,
        notes=tuple(notes),
    )


def on_nodes(plan: Plan, nodes: int) -> Plan:
    """The plan on `nodes` machines alike. Raises PlanError when its processes do not divide."""
    if plan.world_size % nodes:
        raise PlanError(
            f"{plan.world_size} process(es) (parallel.devices) do not divide by {nodes} nodes "
            "(hydra.launcher.nodes)"
        )
    return dataclasses.replace(plan, nodes=nodes)


def rank_devices(plan: Plan, local_rank: int) -> list[torch.device]:
    """The devices of one process: the k-th visible one, or all replicas' for dp."""
    if plan.device_type != "cuda":
        return [torch.device(plan.device_type)]
    if plan.world_size > 1:
        return [torch.device("cuda", local_rank)]
    return [torch.device("cuda", index) for index in range(plan.replicas)]


def seed_dropout(devices: list[torch.device], seed: int) -> None:
    """Seed what draws dropout masks: differently on each device of a dp process."""
    torch.manual_seed(seed)
    for offset, device in enumerate(devices):
        if device.type == "cuda":
            torch.cuda.default_generators[device.index].manual_seed(seed + offset)


def wrap(
    module: nn.Module,
    name: str,
    devices: list[torch.device],
    *,
    sync_batch_norm: bool = False,
    find_unused_parameters: bool = False,
) -> nn.Module:
    """`module`, already on its first device, under the parallelism `name`."""
    if name == "ddp":
        if sync_batch_norm:
            module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
        return DistributedDataParallel(
            module,
            device_ids=devices if devices[0].type == "cuda" else None,
            gradient_as_bucket_view=True,
            find_unused_parameters=find_unused_parameters,
        )
    if name == "dp" and len(devices) > 1:
        return DataParallel(module, device_ids=devices)
    return module


class Ranks:
    """This process among the ranks of its cell, and what they agree on.

    With one process every method answers for it alone. Collectives must be called by all.
    """

    def __init__(self, rank: int, local_rank: int, world_size: int) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size
        self._store: PrefixStore | None = None
        self._told_at: float | None = None  # when this rank was told to stop

    def join(self, backend: str, host: str, port: int, timeout_s: float) -> None:
        """Join the process group by the launcher's store at `host:port`."""
        timeout = datetime.timedelta(seconds=timeout_s)
        if host == "127.0.0.1":  # one machine: nothing of ours listens beyond it
            loopback = "lo0" if sys.platform == "darwin" else "lo"
            os.environ["GLOO_SOCKET_IFNAME"] = loopback
            os.environ["NCCL_SOCKET_IFNAME"] = loopback
        store = TCPStore(host, port, is_master=False, timeout=timeout)
        self._store = PrefixStore("amp_sweep", store)
        device = torch.device("cuda", self.local_rank) if backend == "nccl" else None
        dist.init_process_group(
            backend,
            store=PrefixStore("group", store),
            rank=self.rank,
            world_size=self.world_size,
            timeout=timeout,
            device_id=device,
        )

    def leave(self) -> None:
        """Leave the process group."""
        if self._store is not None:
            dist.destroy_process_group()
            self._store = None

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        if self._store is not None:
            dist.all_reduce(tensor)
        return tensor

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over ranks, summed in the order of ranks.

        An all-reduce sums each part of a tensor in another order, which depends on the tensor's
        length: from three ranks on, a resumed epoch would not repeat the figures to the bit.
        """
        if self._store is None:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor)
        return torch.stack(parts).double().sum(dim=0).div(self.world_size)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's picklable `value`, in the order of ranks, on every rank."""
        if self._store is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def share_buffers(self, module: nn.Module) -> None:
        """Give every rank rank 0's buffers (batch norm's running figures)."""
        if self._store is not None:
            for buffer in module.buffers():
                dist.broadcast(buffer, src=0)

    def agree_on_stop(self, step: int) -> int | None:
        """The step before which all ranks stop: the furthest that any has begun.

        Every rank that is told to stop calls this before each step, with that step's number, until
        there is an answer. None: do the step first. A rank that was told later may be in the
        middle of it, and would wait for this one. Raises RuntimeError when a rank never answers.
        """
        if self._store is None:
            return step
        now = time.monotonic()
        self._told_at = self._told_at or now
        said = self._say_next(step)
        while len(said) < self.world_size and time.monotonic() - now < STOP_WAIT_S:
            time.sleep(STOP_WAIT_S / 10)
            said = self._say_next(step)
        if len(said) < self.world_size:
            said = self._say_next(step + 1)  # before it begins
        if len(said) == self.world_size:
            return max(said.values())
        if time.monotonic() - self._told_at > STOP_TIMEOUT_S:
            silent = sorted(set(range(self.world_size)) - {int(rank) for rank in said})
            raise RuntimeError(f"told to stop, but rank(s) {silent} did not answer")
        return None

    def _say_next(self, step: int) -> dict[str, int]:
        """Say which step this rank does next; what has been said by rank, final once all have."""
        assert self._store is not None
        known = ""  # at first there may be nothing
        while True:
            said: dict[str, int] = json.loads(known) if known else {}
            if len(said) == self.world_size:
                return said
            mine = {**said, str(self.rank): step}
            wanted = json.dumps(mine)
            # Sets it only where the others have said nothing new; gives what is there then.
            known = self._store.compare_set("stop", known, wanted).decode()
            if known == wanted:
                return mine
