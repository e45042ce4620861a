"""DataParallel's replicas in threads that stay."""

import threading
import time

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from amp_sweep import precision
from amp_sweep.fast.kept_threads import KeptThreads

CPUS = [torch.device("cpu")] * 2


class Where(nn.Module):
    """Says in which thread it ran, and whether it would record a gradient."""

    def __init__(self, number: int, fails: bool = False) -> None:
        super().__init__()
        self.number = number
        self.fails = fails

    def forward(self, values: Tensor) -> tuple[int, bool, Tensor]:
        if self.fails:
            raise ValueError(f"replica {self.number}")
        return threading.get_ident(), torch.is_grad_enabled(), values + self.number


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> KeptThreads:
    # Without a device there is nothing to scatter to; the threads are the same.
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return KeptThreads(nn.Identity(), CPUS)


def test_each_replica_has_the_same_thread_at_every_step(kept: KeptThreads) -> None:
    replicas = [Where(0), Where(1)]
    inputs = [(torch.zeros(1),), (torch.ones(1),)]
    first, second = (kept.parallel_apply(replicas, inputs, [{}, {}]) for _ in range(2))
    assert [thread for thread, _, _ in first] == [thread for thread, _, _ in second]
    assert first[0][0] == threading.get_ident() != first[1][0]
    assert [float(value) for _, _, value in first] == [0.0, 2.0]


@pytest.mark.parametrize("enabled", [True, False])
def test_replicas_record_gradients_exactly_where_the_caller_does(
    kept: KeptThreads, enabled: bool
) -> None:
    with torch.set_grad_enabled(enabled):
        found = kept.parallel_apply([Where(0), Where(1)], [(torch.ones(1),)] * 2, [{}, {}])
    assert [grad for _, grad, _ in found] == [enabled, enabled]


@pytest.mark.parametrize("failing", [0, 1])
def test_what_a_replica_raises_reaches_the_caller(kept: KeptThreads, failing: int) -> None:
    replicas = [Where(number, fails=number == failing) for number in range(2)]
    with pytest.raises(ValueError, match=f"replica {failing}"):
        kept.parallel_apply(replicas, [(torch.ones(1),)] * 2, [{}, {}])
    alive = kept.parallel_apply([Where(0), Where(1)], [(torch.ones(1),)] * 2, [{}, {}])
    assert len(alive) == 2


def test_no_replica_goes_on_when_another_has_failed(kept: KeptThreads) -> None:
    ended = []

    class Slow(nn.Module):
        def forward(self, _values: Tensor) -> None:
            time.sleep(0.2)
            ended.append(True)

    with pytest.raises(ValueError, match="replica 0"):
        kept.parallel_apply([Where(0, fails=True), Slow()], [(torch.ones(1),)] * 2, [{}, {}])
    assert ended == [True]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_it_trains_as_data_parallel_does(dtype: torch.dtype | None) -> None:
    devices = [torch.device("cuda", index) for index in range(2)]
    torch.backends.cudnn.benchmark = False
    found = []
    for wrap in (
        lambda loss: DataParallel(loss, device_ids=devices),
        lambda loss: KeptThreads(loss, devices),
    ):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
        loss = precision.ClassifierLoss(network.to(devices[0]), "cuda", dtype)
        wrapped = wrap(loss)
        optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
        losses = []
        for seed in range(5):
            generator = torch.Generator().manual_seed(seed)
            images = torch.randn(16, 3, 8, 8, generator=generator).to(devices[0])
            labels = torch.randint(0, 10, (16,), generator=generator).to(devices[0])
            each = wrapped(images, labels)
            each.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            losses += each.tolist()
        found.append(losses)
    assert found[0] == pytest.approx(found[1], rel=1e-5)
