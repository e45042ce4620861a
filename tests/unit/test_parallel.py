"""How a batch is shared: the plan for any number of devices, the wrapping, one rank alone."""

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DataParallel, DistributedDataParallel

from amp_sweep import parallel
from amp_sweep.config import ParallelConfig
from amp_sweep.parallel import Plan, PlanError, Ranks


def plan(
    name: str,
    device: str = "cuda",
    visible: int = 1,
    batch: int = 64,
    mode: str = "global",
    **options: Any,
) -> Plan:
    return parallel.make_plan(ParallelConfig(name=name, **options), batch, mode, device, visible)


@pytest.mark.parametrize(
    ("made", "world", "replicas", "backend", "batches"),
    [
        # batches: global, per process, per device
        (plan("none", "cpu"), 1, 1, None, (64, 64, 64)),
        (plan("none", "cuda", 8), 1, 1, None, (64, 64, 64)),
        (plan("none", "cuda", 8, mode="per_device"), 1, 1, None, (64, 64, 64)),
        (plan("dp", "cpu"), 1, 1, None, (64, 64, 64)),
        (plan("dp", "cuda", 1), 1, 1, None, (64, 64, 64)),
        (plan("dp", "cuda", 4), 1, 4, None, (64, 64, 16)),
        (plan("dp", "cuda", 3), 1, 2, None, (64, 64, 32)),
        (plan("dp", "cuda", 4, devices=2), 1, 2, None, (64, 64, 32)),
        (plan("dp", "cuda", 3, mode="per_device"), 1, 3, None, (192, 192, 64)),
        (plan("ddp", "cpu"), 2, 2, "gloo", (64, 32, 32)),
        (plan("ddp", "cpu", devices=3, batch=48), 3, 3, "gloo", (48, 16, 16)),
        (plan("ddp", "cpu", devices=1), 1, 1, "gloo", (64, 64, 64)),
        (plan("ddp", "cpu", mode="per_device"), 2, 2, "gloo", (128, 64, 64)),
        (plan("ddp", "cuda", 1), 1, 1, "nccl", (64, 64, 64)),
        (plan("ddp", "cuda", 8), 8, 8, "nccl", (64, 8, 8)),
        (plan("ddp", "cuda", 6), 4, 4, "nccl", (64, 16, 16)),
        (plan("ddp", "cuda", 7, batch=7), 7, 7, "nccl", (7, 1, 1)),
        (plan("ddp", "cuda", 7, batch=1), 1, 1, "nccl", (1, 1, 1)),
        (plan("ddp", "cuda", 3, mode="per_device"), 3, 3, "nccl", (192, 64, 64)),
        (plan("ddp", "cuda", 2, backend="gloo"), 2, 2, "gloo", (64, 32, 32)),
    ],
)
def test_the_plan_says_who_computes_what(
    made: Plan, world: int, replicas: int, backend: str | None, batches: tuple[int, int, int]
) -> None:
    assert (made.world_size, made.replicas, made.backend) == (world, replicas, backend)
    assert (made.global_batch, made.rank_batch, made.device_batch) == batches


@pytest.mark.parametrize("name", ["dp", "ddp"])
@pytest.mark.parametrize("visible", range(1, 9))
def test_auto_takes_the_most_devices_that_the_batch_divides_by(name: str, visible: int) -> None:
    for batch in range(1, 65):
        made = plan(name, "cuda", visible, batch)
        assert made.replicas == max(n for n in range(1, visible + 1) if batch % n == 0)
        assert made.global_batch == batch == made.device_batch * made.replicas
        assert made.rank_batch * made.world_size == batch
        told = any(f"{made.replicas} of {visible} visible" in note for note in made.notes)
        assert told == (1 < made.replicas < visible)


def test_devices_that_were_asked_for_need_no_note() -> None:
    assert plan("dp", "cuda", 4, devices=2).notes == plan("ddp", "cuda", 4, devices=2).notes == ()


def test_nodes_share_the_processes_evenly_or_not_at_all() -> None:
    made = plan("ddp", "cuda", 4)
    assert parallel.on_nodes(made, 2) == dataclasses.replace(made, nodes=2)
    with pytest.raises(PlanError, match=r"^4 process\(es\) .* do not divide by 3 nodes"):
        parallel.on_nodes(made, 3)


@pytest.mark.parametrize(("name", "device"), [("dp", "cuda"), ("ddp", "cuda"), ("ddp", "cpu")])
def test_a_batch_that_does_not_divide_is_refused_with_the_numbers(name: str, device: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(name, device, 8, devices=3)
    for words in ("data.batch_size=64", "3", f"parallel={name}", "multiple of 3"):
        assert words in str(caught.value)
    with pytest.raises(PlanError, match="divide by 2"):
        plan("ddp", "cpu", batch=63)
    assert plan(name, device, 8, devices=3, mode="per_device").global_batch == 192


def test_parallelism_that_has_no_effect_says_so() -> None:
    assert any("no effect here: dp" in note for note in plan("dp", "cpu").notes)
    assert any("no effect here: dp" in note for note in plan("dp", "cuda", 1).notes)
    assert any("no effect here: ddp" in note for note in plan("ddp", "cuda", 1).notes)
    for made in (plan("none", "cuda", 8), plan("dp", "cuda", 2), plan("ddp", "cpu")):
        assert not any("no effect" in note for note in made.notes)


def devices(made: Plan, local_rank: int) -> list[str]:
    return [str(device) for device in parallel.rank_devices(made, local_rank)]


def test_a_process_takes_the_kth_visible_device_and_dp_takes_all() -> None:
    assert [devices(plan("ddp", "cuda", 4), k) for k in range(4)] == [
        ["cuda:0"],
        ["cuda:1"],
        ["cuda:2"],
        ["cuda:3"],
    ]
    assert devices(plan("ddp", "cuda", 2), 1) == ["cuda:1"]
    assert devices(plan("dp", "cuda", 4), 0) == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert devices(plan("dp", "cuda", 4, devices=2), 0) == ["cuda:0", "cuda:1"]
    assert devices(plan("none", "cuda", 4), 0) == ["cuda:0"]
    assert devices(plan("ddp", "cuda", 1), 0) == ["cuda:0"]


def test_on_a_cpu_every_process_has_the_one_device() -> None:
    assert [devices(plan("ddp", "cpu"), k) for k in (0, 1)] == [["cpu"], ["cpu"]]
    assert devices(plan("dp", "cpu"), 0) == ["cpu"]
    assert devices(plan("none", "mps"), 0) == ["mps"]


def test_one_device_needs_no_wrapping() -> None:
    module = nn.Linear(2, 2)
    cpu = [torch.device("cpu")]
    assert parallel.wrap(module, "none", cpu) is module
    assert parallel.wrap(module, "dp", cpu) is module
    assert not isinstance(module, DataParallel | DistributedDataParallel)


def test_a_wrapper_is_told_its_gpus_and_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def recorded(module: nn.Module, **given: Any) -> tuple[nn.Module, dict[str, Any]]:
        return module, given

    for wrapper in ("DataParallel", "DistributedDataParallel"):
        monkeypatch.setattr(parallel, wrapper, recorded)
    gpu, cpu = [torch.device("cuda", 1)], [torch.device("cpu")]
    for asked in (False, True):
        network = nn.Sequential(nn.BatchNorm1d(3))
        made: Any = parallel.wrap(
            network, "ddp", gpu, sync_batch_norm=asked, find_unused_parameters=asked
        )
        assert isinstance(made[0][0], nn.SyncBatchNorm) == asked
        assert made[1]["find_unused_parameters"] == asked
        assert made[1]["device_ids"] == gpu
        # Else each gradient is held twice.
        assert made[1]["gradient_as_bucket_view"]
    made = parallel.wrap(network, "ddp", cpu)
    assert made[0] is network and made[1]["device_ids"] is None
    two = [torch.device("cuda", index) for index in (0, 1)]
    made = parallel.wrap(network, "dp", two)
    assert made == (network, {"device_ids": two})


def test_each_gpu_of_a_dp_process_draws_another_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [torch.Generator(), torch.Generator()]
    monkeypatch.setattr(torch.cuda, "default_generators", drawn)
    parallel.seed_dropout([torch.device("cuda", 0), torch.device("cuda", 1)], 5)
    assert [generator.initial_seed() for generator in drawn] == [5, 6]


def test_the_seed_decides_the_dropout() -> None:
    def mask(seed: int) -> torch.Tensor:
        parallel.seed_dropout([torch.device("cpu")], seed)
        return nn.functional.dropout(torch.ones(64))

    assert torch.equal(mask(1), mask(1))
    assert not torch.equal(mask(1), mask(2))


def test_a_rank_alone_answers_for_all() -> None:
    ranks = Ranks(0, 0, 1)
    tensor = torch.tensor([1.0, 2.0])
    assert ranks.sum(tensor) is ranks.mean(tensor) is tensor and tensor.tolist() == [1.0, 2.0]
    value = {"a": object()}
    assert ranks.gather(value) == [value] and ranks.gather(value)[0] is value
    network = nn.BatchNorm1d(3)
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    ranks.share_buffers(network)
    assert all(torch.equal(before[name], buffer) for name, buffer in network.named_buffers())
    assert [ranks.agree_on_stop(step) for step in (0, 7)] == [0, 7]
    ranks.leave()
    ranks.leave()


def test_a_group_is_joined_and_left_for_good() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = Ranks(0, 0, 1)
    ranks.join("gloo", "localhost", server.port, 20.0)
    assert dist.is_initialized() and ranks.gather(1) == [1]
    ranks.leave()
    assert not dist.is_initialized()
    ranks.leave()


@pytest.mark.parametrize(
    ("told_at", "slow"),
    [((3, 3, 3), None), ((3, 4, 9), None), ((5, 2, 2), None), ((0, 30, 1), None), ((3, 3), 1)],
)
def test_ranks_that_are_told_to_stop_at_different_times_stop_before_the_same_step(
    told_at: tuple[int, ...], slow: int | None
) -> None:
    # A step is a collective: nobody leaves it before all are in it. Each is told in a step's midst.
    step_of_all = threading.Barrier(len(told_at), timeout=20)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def train(rank: int) -> int:
        ranks = Ranks(rank, rank, len(told_at))
        client = TCPStore("127.0.0.1", server.port, is_master=False)
        ranks._store = PrefixStore("amp_sweep", client)
        told, target = False, None
        for step in range(100):
            if told and target is None:
                if rank == slow:  # the other does not wait so long and begins the step
                    time.sleep(5 * parallel.STOP_WAIT_S)
                target = ranks.agree_on_stop(step)
            if target is not None and step >= target:
                return step
            told = told or step >= told_at[rank]
            step_of_all.wait()
        raise AssertionError("never stopped")

    with ThreadPoolExecutor(len(told_at)) as pool:
        stops = set(pool.map(train, range(len(told_at))))
    assert len(stops) == 1 and stops.pop() > max(told_at)


def test_what_all_ranks_have_said_is_final() -> None:
    store = PrefixStore("amp_sweep", TCPStore("127.0.0.1", 0, is_master=True))
    first, second = Ranks(0, 0, 2), Ranks(1, 1, 2)
    first._store = second._store = store
    assert [first._say_next(step) for step in (3, 3, 4)] == [{"0": 3}, {"0": 3}, {"0": 4}]
    assert second._say_next(4) == {"0": 4, "1": 4}
    assert first._say_next(5) == {"0": 4, "1": 4}  # the other has gone by it already


def test_a_rank_that_never_answers_a_stop_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amp_sweep.parallel.STOP_TIMEOUT_S", 1.5 * parallel.STOP_WAIT_S)
    ranks = Ranks(0, 0, 2)
    ranks._store = PrefixStore("amp_sweep", TCPStore("127.0.0.1", 0, is_master=True))
    with pytest.raises(RuntimeError, match=r"rank\(s\) \[1\] did not answer"):
        for step in range(4, 24):  # the time is counted from the first
            ranks.agree_on_stop(step)
