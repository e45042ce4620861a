"""Number formats: what layers compute in, and the scaler that changes nothing but the scale."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amp_sweep import engine, optim, precision
from amp_sweep.config import OptimizerConfig
from amp_sweep.precision import ClassifierLoss

Batch = tuple[Tensor, Tensor]


def tiny_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5)
    )


def batches(count: int, seed: int = 1) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(8, 3, 8, 8, generator=generator),
            torch.randint(0, 5, (8,), generator=generator),
        )
        for _ in range(count)
    ]


def numpy_cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Loss per image, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]


# ------------------------------------------------------------------ the loss


def test_the_loss_is_the_mean_cross_entropy_one_element_a_replica() -> None:
    network = tiny_network().eval()
    loss = ClassifierLoss(network, "cpu", None)
    images, labels = batches(1)[0]
    with torch.no_grad():
        value = loss(images, labels)
        expected = numpy_cross_entropy(network(images).numpy(), labels.numpy()).mean()
    assert value.shape == (1,) and value.dtype == torch.float32
    assert value.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("dtype", "name"), [(None, "float32"), (torch.bfloat16, "bfloat16"), (torch.float16, "float16")]
)
def test_layers_compute_in_the_dtype_that_was_asked_for(
    dtype: torch.dtype | None, name: str
) -> None:
    loss = ClassifierLoss(tiny_network(), "cpu", dtype)
    images, labels = batches(1)[0]
    seen = precision.Observed()
    with precision.observe(loss, seen):
        value = loss(images.contiguous(memory_format=torch.channels_last), labels)
        value.backward()
    assert seen.dtypes == {name}
    assert seen.by_device["cpu"]["loss"] == {"float32"}
    assert seen.images == {"cpu": ((8, 3, 8, 8), True)}
    # The loss and the gradients are float32 whatever the layers compute in.
    assert value.dtype == torch.float32
    assert {p.grad.dtype for p in loss.parameters() if p.grad is not None} == {torch.float32}
    seen.dtypes.clear()
    with precision.observe(loss.network, seen), torch.no_grad():
        scores = loss.logits(images)
    assert seen.dtypes == {name} and scores.dtype == torch.float32 and scores.shape == (8, 5)


def test_the_dtype_reaches_a_new_thread_as_dataparallel_starts_them() -> None:
    loss = ClassifierLoss(tiny_network(), "cpu", torch.bfloat16)
    images, labels = batches(1)[0]

    def dtypes_in_a_thread(forward: Callable[[], object]) -> set[str]:
        seen = precision.Observed()
        with precision.observe(loss.network, seen):
            thread = threading.Thread(target=forward)
            thread.start()
            thread.join()
        return seen.dtypes

    with torch.autocast("cpu", dtype=torch.bfloat16):  # the way that does not work
        assert dtypes_in_a_thread(lambda: loss.network(images)) == {"float32"}
    assert dtypes_in_a_thread(lambda: loss(images, labels)) == {"bfloat16"}


def test_nothing_is_left_switched_on_after_a_forward() -> None:
    loss = ClassifierLoss(tiny_network(), "cpu", torch.bfloat16)
    loss(*batches(1)[0])
    assert not torch.is_autocast_enabled("cpu")


# ------------------------------------------------------------------ observing


def hooks_of(network: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in network.modules())


def test_observing_ends_and_takes_its_hooks_along() -> None:
    network, seen = tiny_network(), precision.Observed()
    images = batches(1)[0][0]
    stack = precision.observe(network, seen)
    assert hooks_of(network) == 2  # the convolution and the linear layer
    network(images)
    assert seen.dtypes == {"float32"}
    stack.close()
    assert hooks_of(network) == 0
    stack.close()  # again is harmless
    seen.dtypes.clear()
    network(images)
    assert seen.dtypes == set()


def test_observing_takes_its_hooks_along_when_the_forward_fails() -> None:
    network = tiny_network()
    with pytest.raises(RuntimeError), precision.observe(network, precision.Observed()):
        network(torch.zeros(1, 2, 8, 8))
    assert hooks_of(network) == 0


def test_observing_can_be_off() -> None:
    network, seen = tiny_network(), precision.Observed()
    with precision.observe(network, seen, active=False):
        assert hooks_of(network) == 0
        network(batches(1)[0][0])
    assert seen.dtypes == set()


def test_a_network_without_the_usual_layers_is_observed_at_those_with_parameters() -> None:
    network = nn.Sequential(nn.LayerNorm(4), nn.ReLU()).to(torch.float64)
    seen = precision.Observed()
    with precision.observe(network, seen):
        assert hooks_of(network) == 1
        network(torch.zeros(2, 4, dtype=torch.float64))
    seen.add("other", torch.zeros(1, dtype=torch.int64))  # indices are no format to compute in
    assert seen.dtypes == {"float64"}


def test_a_part_that_computes_in_another_dtype_is_seen() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double())
    seen = precision.Observed()
    with precision.observe(network, seen):
        network[1](network[0](torch.zeros(2, 4)).double())
    assert seen.dtypes == {"float32", "float64"}


# ------------------------------------------------------------------ choices


@pytest.mark.parametrize(
    ("autocast", "dtype", "device", "expected"),
    [
        (False, "auto", "cpu", None),
        (False, "bfloat16", "cuda", None),
        (True, "auto", "cpu", torch.bfloat16),
        (True, "auto", "cuda", torch.float16),
        (True, "float16", "cpu", torch.float16),
        (True, "bfloat16", "cuda", torch.bfloat16),
    ],
)
def test_autocasts_dtype_is_the_one_named_or_the_devices_own(
    autocast: bool, dtype: str, device: str, expected: torch.dtype | None
) -> None:
    assert precision.autocast_dtype(autocast, dtype, device) == expected


@pytest.mark.parametrize("enabled", [True, False])
def test_tf32_is_switched_for_convolutions_and_products_alike(
    torch_switches: None, enabled: bool
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = not enabled
    torch.backends.cudnn.allow_tf32 = not enabled
    precision.set_tf32(enabled)
    assert torch.backends.cuda.matmul.allow_tf32 is enabled
    assert torch.backends.cudnn.allow_tf32 is enabled


def test_a_disabled_scaler_passes_everything_through() -> None:
    scaler = precision.make_scaler(False, "cpu", 1024.0, 5)
    assert not scaler.is_enabled() and scaler.get_scale() == 1.0
    loss = torch.ones(1, requires_grad=True)
    assert scaler.scale(loss) is loss
    assert scaler.state_dict() == {}


def test_an_enabled_scaler_on_the_cpu_is_real() -> None:
    scaler = precision.make_scaler(True, "cpu", 1024.0, 5)
    assert scaler.is_enabled()
    assert scaler.scale(torch.ones(1)).item() == 1024.0
    assert scaler.get_growth_interval() == 5 and scaler.get_growth_factor() == 2.0
    assert scaler.get_backoff_factor() == 0.5


# ------------------------------------------------------------------ the step

OPTIMIZERS = {
    "adamw": OptimizerConfig(name="adamw", lr=1e-3),
    "sgd": OptimizerConfig(name="sgd", lr=1e-2, momentum=0.9, weight_decay=5e-4),
}


def make_trainer(
    optimizer: OptimizerConfig,
    dtype: torch.dtype | None,
    *,
    scaler: bool = False,
    clip: float | None = None,
    **scaler_options: Any,
) -> engine.Trainer:
    loss = ClassifierLoss(tiny_network(), "cpu", dtype).train()
    parameters = list(loss.parameters())
    options = {"init_scale": 2.0**10, "growth_interval": 7, **scaler_options}
    return engine.Trainer(
        loss,
        parameters,
        optim.build_optimizer(parameters, optimizer, torch.device("cpu")),
        precision.make_scaler(scaler, "cpu", **options),
        clip,
    )


def weights(trainer: engine.Trainer) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in trainer.parameters]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_the_scaler_cell_equals_the_autocast_cell_bit_for_bit(
    name: str, clip: float | None
) -> None:
    plain = make_trainer(OPTIMIZERS[name], torch.bfloat16, clip=clip)
    scaled = make_trainer(OPTIMIZERS[name], torch.bfloat16, scaler=True, clip=clip)
    before = weights(plain)
    for images, labels in batches(120):
        one = engine.train_step(plain, images, labels)
        two = engine.train_step(scaled, images, labels)
        assert torch.equal(one, two)
    assert same(weights(plain), weights(scaled))
    assert not same(before, weights(plain))
    # The scale grew after every 7th step, by powers of two.
    assert scaled.scaler.get_scale() == 2.0 ** (10 + 120 // 7)


@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("clip", [None, 0.05, 1e6])
def test_a_step_is_the_clipped_gradient_times_the_lr(scaler: bool, clip: float | None) -> None:
    trainer = make_trainer(
        OptimizerConfig(name="sgd", lr=0.5, momentum=0.0, weight_decay=0.0),
        None,
        scaler=scaler,
        clip=clip,
    )
    images, labels = batches(1)[0]
    reference = tiny_network().train()
    loss = F.cross_entropy(reference(images), labels)
    gradients = [
        g.double().numpy() for g in torch.autograd.grad(loss, list(reference.parameters()))
    ]
    norm = np.sqrt(sum((g**2).sum() for g in gradients))
    factor = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
    assert (factor < 1) == (clip == 0.05)
    before = weights(trainer)
    step_loss = engine.train_step(trainer, images, labels)
    assert step_loss.item() == pytest.approx(loss.item(), rel=1e-6)
    assert step_loss.shape == (1,) and not step_loss.requires_grad
    for old, new, gradient in zip(before, weights(trainer), gradients, strict=True):
        expected = old.double().numpy() - 0.5 * factor * gradient
        np.testing.assert_allclose(new.numpy(), expected, rtol=1e-5, atol=1e-7)
    assert all(parameter.grad is None for parameter in trainer.parameters)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_scaler_skips_a_step_that_is_not_finite_and_halves_its_scale(
    name: str, clip: float | None
) -> None:
    trainer = make_trainer(OPTIMIZERS[name], None, scaler=True, clip=clip)
    good, bad = batches(2)
    engine.train_step(trainer, *good)
    before = weights(trainer)
    loss = engine.train_step(trainer, torch.full_like(bad[0], torch.inf), bad[1])
    assert not loss.isfinite()
    assert same(before, weights(trainer))
    assert trainer.scaler.get_scale() == 2.0**9
    # Without a scaler the same step destroys the weights.
    plain = make_trainer(OPTIMIZERS[name], None, clip=clip)
    engine.train_step(plain, torch.full_like(bad[0], torch.inf), bad[1])
    assert not all(weight.isfinite().all() for weight in weights(plain))


def test_gradients_too_small_for_float16_survive_with_a_scaler_only() -> None:
    """The scaler's purpose: 1e-8 is zero in float16, and 1e-8 times 2**16 is not."""

    def moved(scaler: bool) -> float:
        weight = nn.Parameter(torch.zeros(1, 1))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scale = precision.make_scaler(scaler, "cpu", 65536.0, 2000)

        class Loss(nn.Module):
            def forward(self, images: Tensor, _labels: Tensor) -> Tensor:
                return (F.linear(images.half(), weight.half()).float() * 1e-8).reshape(1)

        trainer = engine.Trainer(Loss(), [weight], optimizer, scale, None)
        engine.train_step(trainer, torch.ones(1, 1), torch.zeros(1))
        return -weight.item()

    assert moved(False) == 0.0
    assert moved(True) == pytest.approx(1e-8, rel=1e-3)
