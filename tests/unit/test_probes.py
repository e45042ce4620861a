"""Probes on real small cells: their figures, and that they leave everything as it was."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from amp_sweep import ceilings, data, engine, models, optim, parallel, precision, probes
from amp_sweep.config import OptimizerConfig, RunConfig
from amp_sweep.parallel import Ranks
from amp_sweep.precision import ClassifierLoss
from amp_sweep.probes import busy, flops, underflow
from amp_sweep.probes.busy import COMMUNICATION, COMPUTE, MEMORY

Make = Callable[..., RunConfig]
CPU = torch.device("cpu")


def batch(images: int = 8, size: int = 64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.rand(images, 3, size, size, generator=generator),
        torch.randint(0, 4, (images,), generator=generator),
    )


# ------------------------------------------------------------------ FLOPs


def alexnet_macs(size: int, outputs: int) -> tuple[int, int]:
    """Multiplications of AlexNet's layers per image, by hand: all, and the first layer's."""

    def out(size: int, kernel: int, stride: int, padding: int) -> int:
        return (size + 2 * padding - kernel) // stride + 1

    macs = []
    side = out(size, 11, 4, 2)
    macs.append(64 * 3 * 11 * 11 * side**2)
    side = out(side, 3, 2, 0)
    macs.append(192 * 64 * 5 * 5 * side**2)
    side = out(side, 3, 2, 0)
    macs += [n * c * 9 * side**2 for n, c in ((384, 192), (256, 384), (256, 256))]
    macs += [256 * 36 * 4096, 4096 * 4096, 4096 * outputs]
    return sum(macs), macs[0]


@pytest.mark.parametrize("size", [224, 227])
def test_the_flops_of_alexnet_are_those_counted_by_hand(size: int) -> None:
    with torch.device("meta"):
        network = models.build("alexnet", 1000)
    forward, both = flops.per_image(network, size)
    all_macs, first = alexnet_macs(size, 1000)
    assert forward == 2 * all_macs
    # Backward: each layer's weights and its input, but for the images themselves.
    assert both == 2 * (3 * all_macs - first)
    if size == 224:
        assert forward / 2e9 == pytest.approx(0.714, abs=0.0005)


@pytest.mark.parametrize("groups", [1, 3, 12])
@pytest.mark.parametrize("layer", [nn.Conv2d, nn.ConvTranspose2d])
def test_a_grouped_convolution_takes_as_much_for_each_gradient_as_forward(
    layer: type[nn.Conv2d] | type[nn.ConvTranspose2d], groups: int
) -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 12, 1),
        layer(12, 24, 3, stride=2, padding=1, groups=groups),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    forward, both = flops.per_image(network, 8)
    first = 8 * 8 * 12 * 3
    # Each pixel of the smaller side meets 3 x 3 weights of each pair of channels in a group.
    side = 4 if layer is nn.Conv2d else 8
    second = side * side * 24 * (12 // groups) * 9
    assert forward == 2 * (first + second)
    assert both == 2 * (2 * first + 3 * second)


def test_the_meta_device_counts_as_a_cpu_does() -> None:
    with torch.device("meta"):
        shapes = flops.per_image(models.build("alexnet", 10, width=0.1), 64)
    assert shapes == flops.per_image(models.build("alexnet", 10, width=0.1), 64)


# ------------------------------------------------------------------ underflow


class Faint(nn.Module):
    """All its gradients are about 1e-7 of what is usual."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(12, 16)
        self.two = nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(images.mean(dim=(2, 3)).repeat(1, 4)))) * 1e-7


def test_gradients_that_are_too_small_for_float16_are_seen_and_a_scale_saves_them() -> None:
    torch.manual_seed(0)
    loss = ClassifierLoss(Faint(), "cpu", torch.float16)
    found = underflow.measure(loss, [batch(8, 4)], 65536.0)
    assert found.unscaled > 0.5
    assert found.scaled < 0.05 and found.scale == 65536.0


def test_the_share_is_that_of_an_independent_count() -> None:
    torch.manual_seed(0)
    network = Faint()
    loss = ClassifierLoss(network, "cpu", torch.float16)
    images, labels = batch(8, 4)
    found = underflow.measure(loss, [(images, labels)], 1024.0)

    def gradients(dtype: torch.dtype | None, scale: float) -> Tensor:
        network.zero_grad()
        (ClassifierLoss(network, "cpu", dtype)(images, labels).mean() * scale).backward()
        return torch.cat([p.grad.flatten() for p in network.parameters()])  # type: ignore[union-attr]

    exact = gradients(None, 1.0)
    for scale, share in ((1.0, found.unscaled), (1024.0, found.scaled)):
        lost = (gradients(torch.float16, scale) == 0) & (exact != 0)
        assert share == pytest.approx(lost.float().mean().item())
    assert underflow.measure(loss, [(images, labels)] * 2, 1024.0) == found  # of all elements


def test_a_scale_that_overflows_is_halved_as_a_scaler_would() -> None:
    torch.manual_seed(0)
    loss = ClassifierLoss(models.build("alexnet", 4, width=0.05), "cpu", torch.bfloat16)
    found = underflow.measure(loss, [batch(2)], 2.0**130)
    assert 1.0 < found.scale < 2.0**129 and math.frexp(found.scale)[0] == 0.5
    assert found.scaled <= found.unscaled


def test_looking_for_underflow_changes_neither_weights_nor_gradients_nor_modes() -> None:
    torch.manual_seed(0)
    loss = ClassifierLoss(models.build("alexnet", 4, width=0.05), "cpu", torch.bfloat16)
    loss.train()
    before = [p.clone() for p in loss.parameters()]
    underflow.measure(loss, [batch(2)], 2.0)
    assert all(torch.equal(a, b) for a, b in zip(before, loss.parameters(), strict=True))
    assert all(p.grad is None for p in loss.parameters())
    assert all(module.training for module in loss.modules())


def test_half_precision_weights_are_compared_with_their_own_values_in_float32() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 4))
    network[1].to(torch.bfloat16)
    found = underflow.measure(ClassifierLoss(network, "cpu", torch.bfloat16), [batch(8, 4)], 8.0)
    assert found.unscaled == found.scaled == 0.0


# ------------------------------------------------------------------ busy


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN", COMPUTE),
        ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64", COMPUTE),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_f32_nhwckrsc_nhwc", COMPUTE),
        ("cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32>", COMPUTE),
        ("void cudnn::cnn::conv2d_grouped_direct_kernel<float>", COMPUTE),
        ("ampere_sgemm_128x64_tn", COMPUTE),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", COMPUTE),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>", MEMORY),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdam>", MEMORY),
        ("void at::native::max_pool_forward_nhwc<c10::Half, int>", MEMORY),
        ("void cudnn::ops::convertTensor_kernel<float, float>", MEMORY),
        ("Memcpy DtoD (Device -> Device)", MEMORY),
        ("Memset (Device)", MEMORY),
        ("Memcpy PtoP (Device -> Device)", COMMUNICATION),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            COMMUNICATION,
        ),
    ],
)
def test_kernels_are_told_apart_by_name(name: str, kind: str) -> None:
    assert busy.kernel_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::convolution", COMPUTE),
        ("aten::convolution_backward", COMPUTE),
        ("aten::mm", COMPUTE),
        ("aten::addmm", COMPUTE),
        ("aten::_fused_adamw_", MEMORY),
        ("aten::max_pool2d_with_indices", MEMORY),
        ("aten::threshold_backward", MEMORY),
        ("aten::sum.dim_IntList", MEMORY),
    ],
)
def test_operations_are_told_apart_by_name(name: str, kind: str) -> None:
    assert busy.operation_kind(name) == kind


def test_each_moment_counts_once_and_hidden_communication_for_nothing() -> None:
    found = busy.exposed(
        [
            (0.0, 4.0, COMPUTE),
            (3.0, 6.0, MEMORY),  # one second beside compute
            (5.0, 9.0, COMMUNICATION),  # one second beside memory
            (8.0, 10.0, COMPUTE),  # and one beside compute
            (12.0, 13.0, MEMORY),  # after a gap of two
            (13.0, 13.0, COMPUTE),
        ]
    )
    assert found == pytest.approx({COMPUTE: 6.0, MEMORY: 3.0, COMMUNICATION: 2.0})


def test_the_time_of_operations_is_seen_in_the_backward_pass_too() -> None:
    weight = torch.randn(256, 256, requires_grad=True)
    inputs = torch.randn(512, 256)

    def step(_batch: None) -> None:
        time.sleep(0.02)  # no operation: a gap
        (inputs @ weight).sum().backward()

    started = time.perf_counter()
    found = busy.measure(lambda: None, step, [CPU])
    elapsed = time.perf_counter() - started
    assert found.compute_s > found.memory_s > 0 and found.communication_s == 0
    assert found.window_s is not None and found.window_s <= elapsed / busy.CPU_STEPS
    assert found.window_s - found.compute_s - found.memory_s > 0.02


# ------------------------------------------------------------------ all together


def subject(make: Make, tmp_path: Path, **changes: Any) -> probes.Subject:
    """A small cell after its training."""
    settings = make(
        data__name="synthetic",
        data__train_images=16,
        data__test_images=4,
        data__classes=4,
        data__source_size=64,
        data__batch_size=4,
    )
    prepared = data.prepare(settings.data)
    split = data.open_split(prepared, "train", settings.data, CPU)
    torch.manual_seed(0)
    network = models.build("alexnet", 4, width=0.05)
    dtype = changes.pop("dtype", torch.bfloat16)
    loss = ClassifierLoss(network, "cpu", dtype)
    optimizer = optim.build_optimizer(loss.parameters(), OptimizerConfig("adamw", 1e-3), CPU)
    scaler = precision.make_scaler(dtype is not None, "cpu", 1024.0, 100)
    trainer = engine.Trainer(loss, list(loss.parameters()), optimizer, scaler, 1.0)
    indices = torch.arange(16).view(4, 4)
    for raw in split.batches(indices[:2]):
        engine.train_step(trainer, *split.to_input(raw))
    values: dict[str, Any] = {
        "trainer": trainer,
        "loss": loss,
        "split": split,
        "stored": split.stored(),
        "indices": indices,
        "devices": [CPU],
        "ranks": Ranks(0, 0, 1),
        "step_s": 0.001,
        "train_s": 1.0,
        "allowed_s": 3.0,
        "autocast_dtype": dtype,
        "tf32": False,
        "init_scale": 1024.0,
        "device_name": "cpu",
        "driver": None,
        "cache": tmp_path / "ceilings",
        "plain_network": lambda: models.build("alexnet", 4, width=0.05),
        "image_size": 64,
    }
    return probes.Subject(**(values | changes))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_SWEEP_CACHE", str(tmp_path / "cache"))


def test_every_probe_gives_its_figures(make: Make, tmp_path: Path) -> None:
    seen: list[str] = []
    found = probes.run_probes(subject(make, tmp_path), seen.append)
    assert found.reasons == {}
    assert None not in found.metrics.values()
    assert set(found.metrics) >= {*probes.MEMORY, *probes.UNDERFLOW, *probes.BUSY}
    assert found.metrics["communication_s"] == 0.0  # one process
    assert found.metrics["ceiling_tflops"] > 0
    assert len(seen) == 6


def test_the_probes_leave_weights_optimizer_scaler_and_random_numbers_alone(
    make: Make, tmp_path: Path
) -> None:
    cell = subject(make, tmp_path)

    def state() -> list[Tensor]:
        kept = [*cell.loss.state_dict().values()]
        for entry in cell.trainer.optimizer.state.values():
            kept += [value for value in entry.values() if isinstance(value, Tensor)]
        kept.append(torch.get_rng_state())
        return [item.clone() for item in kept]

    before, scale = state(), cell.trainer.scaler.get_scale()
    probes.run_probes(cell)
    after = state()
    assert len(before) == len(after) > 30
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    assert cell.trainer.scaler.get_scale() == scale
    assert all(parameter.grad is None for parameter in cell.loss.parameters())
    # Training goes on as it would have: the optimizer steps its own weights.
    raw = next(cell.split.batches(cell.indices[:1]))
    engine.train_step(cell.trainer, *cell.split.to_input(raw))
    assert not torch.equal(after[0], next(iter(cell.loss.state_dict().values())))


def test_a_copied_optimizer_steps_its_own_weights_under_a_scheduler(make: Make) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    weight.grad = torch.ones(3)
    optimizer.step()
    before = weight.detach().clone()
    twin = probes._twin(optimizer)
    (copied,) = twin.param_groups[0]["params"]
    assert torch.equal(copied, before)
    copied.grad = torch.ones(3)
    twin.step()
    assert torch.equal(weight, before) and not torch.equal(copied, before)
    # And by as much as the original would.
    optimizer.step()
    assert torch.equal(weight, copied)


def test_a_failing_probe_costs_its_own_figures_only(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object, **_named: object) -> None:
        raise torch.OutOfMemoryError("out of memory\nand many more lines")

    monkeypatch.setattr(underflow, "measure", fail)
    found = probes.run_probes(subject(make, tmp_path))
    for name in probes.UNDERFLOW:
        assert found.metrics[name] is None
        assert found.reasons[name] == (
            "the underflow probe failed: OutOfMemoryError: out of memory"
        )
    assert set(found.reasons) == set(probes.UNDERFLOW)
    assert found.metrics["flops_per_image"] > 0


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of one, so that ddp can be wrapped around a network."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_ddps_buckets_are_gradients(make: Make, tmp_path: Path, group: None) -> None:
    cell = subject(make, tmp_path)
    cell.trainer.loss = parallel.wrap(cell.loss, "ddp", [CPU])
    for raw in cell.split.batches(cell.indices[:2]):  # in which ddp settles its buckets
        engine.train_step(cell.trainer, *cell.split.to_input(raw))
    found = probes.run_probes(cell)
    assert found.reasons == {}
    (weights,), (gradients,) = (
        found.metrics[f"memory_{kind}_mib"] for kind in ("parameters", "gradients")
    )
    # Kept between the steps, all of them: not one gradient after the other.
    assert gradients == pytest.approx(weights)
    assert found.metrics["memory_unattributed_mib"] == [0.0]


def test_a_rank_that_fails_before_the_exchange_tells_the_others(
    make: Make, tmp_path: Path, group: None
) -> None:
    class Two(Ranks):
        """The other of two ranks has failed."""

        def gather(self, value: Any) -> list[Any]:
            return [value, True]

    cell = subject(make, tmp_path, ranks=Two(0, 0, 1))
    cell.trainer.loss = parallel.wrap(cell.loss, "ddp", [CPU])
    found = probes.run_probes(cell)
    assert found.reasons["memory_parameters_mib"] == (
        "the memory probe failed: RuntimeError: it failed on rank 1"
    )


@pytest.mark.parametrize("scaler", [False, True])
def test_underflow_is_that_of_the_cells_own_scale_or_of_the_one_it_would_begin_with(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scaler: bool
) -> None:
    def seen(_loss: object, _batches: object, scale: float) -> underflow.Underflow:
        return underflow.Underflow(unscaled=0.5, scaled=0.25, scale=scale)

    monkeypatch.setattr(underflow, "measure", seen)
    cell = subject(make, tmp_path, init_scale=512.0)
    if not scaler:
        cell.trainer.scaler = precision.make_scaler(False, "cpu", 1.0, 1)
    metrics = probes.run_probes(cell).metrics
    assert metrics["underflow_scale"] == (1024.0 if scaler else 512.0)
    assert metrics["underflow_frac"] == (0.25 if scaler else 0.5)
    assert (metrics["underflow_frac_unscaled"], metrics["underflow_frac_scaled"]) == (0.5, 0.25)


def test_a_ceiling_is_told_what_the_training_has_reached(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}

    def measured(*_given: object, **named: Any) -> ceilings.Ceilings:
        told.update(named)
        return ceilings.Ceilings(1.0, 1.0)

    monkeypatch.setattr(ceilings, "measured", measured)
    metrics = probes.run_probes(subject(make, tmp_path, step_s=0.5)).metrics
    # Four images in half a second.
    reached = metrics["flops_per_image"] * 8 / 1e12
    assert told["reached_tflops"] == pytest.approx(reached)


def test_in_float32_there_is_no_underflow_to_look_for(make: Make, tmp_path: Path) -> None:
    found = probes.run_probes(subject(make, tmp_path, dtype=None))
    assert found.metrics["underflow_frac"] is None
    assert found.reasons["underflow_frac"] == "nothing is computed in half precision"


def test_what_would_take_too_long_on_a_cpu_is_left_out_and_says_so(
    make: Make, tmp_path: Path
) -> None:
    found = probes.run_probes(subject(make, tmp_path, step_s=1.0, train_s=0.0))
    assert found.metrics["memory_parameters_mib"] is not None
    assert found.metrics["underflow_frac"] is None
    assert found.reasons["underflow_frac"] == (
        "left out: it would take 4.0 s, and 0.0 s are left of what all probes may take "
        "(measure.probes_s)"
    )
    longer = probes.run_probes(subject(make, tmp_path, step_s=1.0, train_s=1000.0))
    assert longer.reasons == {}


def test_a_probe_that_a_cell_does_not_need_costs_the_others_no_time(
    make: Make, tmp_path: Path
) -> None:
    alone = probes.run_probes(subject(make, tmp_path, step_s=1.0, train_s=0.0, allowed_s=11.0))
    assert alone.reasons == {}
    exact = subject(make, tmp_path, step_s=1.0, train_s=0.0, allowed_s=7.0, dtype=None)
    assert set(probes.run_probes(exact).reasons) == set(probes.UNDERFLOW)


def test_a_device_that_no_probe_knows_has_reasons_only(make: Make, tmp_path: Path) -> None:
    found = probes.run_probes(subject(make, tmp_path, devices=[torch.device("mps")]))
    assert set(found.metrics.values()) == {None}
    assert set(found.reasons.values()) == {"not measured on mps"}
