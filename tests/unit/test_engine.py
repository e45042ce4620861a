"""The one training step loop and the one evaluation, against loops written out by hand."""

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amp_sweep import data, engine, optim, precision
from amp_sweep.config import DataConfig, OptimizerConfig
from amp_sweep.measure import StepClock
from amp_sweep.precision import ClassifierLoss

CPU = torch.device("cpu")
ADAMW = OptimizerConfig(name="adamw", lr=1e-2)
TRAIN, TEST, CLASSES, SIZE = 48, 23, 3, 8


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> data.Prepared:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMP_SWEEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        return data.prepare(CONFIG)


CONFIG = DataConfig(
    name="synthetic",
    train_images=TRAIN,
    test_images=TEST,
    classes=CLASSES,
    source_size=SIZE,
    image_size=SIZE,
    normalize=False,
)


def pixels(prepared: data.Prepared, part: str) -> tuple[Tensor, Tensor]:
    """All images, float32 [count, 3, 8, 8] in 0..1, and labels, straight from the files."""
    stored = np.load(prepared.folder / f"{part}_images.npy")
    labels = np.load(prepared.folder / f"{part}_labels.npy")
    images = torch.from_numpy(stored).permute(0, 3, 1, 2).float() / 255
    return images.expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(labels)


def network(dropout: float = 0.3) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(4 * 6 * 6, CLASSES + 2),
    )


def trainer(scaler: bool = False, clip: float | None = None) -> engine.Trainer:
    loss = ClassifierLoss(network(), "cpu", None)
    parameters = list(loss.parameters())
    return engine.Trainer(
        loss,
        parameters,
        optim.build_optimizer(parameters, ADAMW, torch.device("cpu")),
        precision.make_scaler(scaler, "cpu", 2.0**8, 3),
        clip,
    )


def split(prepared: data.Prepared, part: data.PartName) -> data.Split:
    return data.open_split(prepared, part, CONFIG, CPU)


def orders(epochs: int, batch: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randperm(TRAIN, generator=generator)[: TRAIN // batch * batch].view(-1, batch)
        for _ in range(epochs)
    ]


def by_hand(
    images: Tensor, labels: Tensor, epochs: list[Tensor]
) -> tuple[list[list[float]], dict[str, Tensor]]:
    """The loop that everybody writes: losses per step of each epoch, and the weights after it."""
    model = network()
    update = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01, fused=True)
    torch.manual_seed(11)
    losses = []
    for indices in epochs:
        model.train()
        losses.append([])
        for row in indices:
            update.zero_grad()
            loss = F.cross_entropy(model(images[row]), labels[row])
            loss.backward()
            update.step()
            losses[-1].append(loss.item())
    return losses, model.state_dict()


@pytest.mark.parametrize("scaler", [False, True])
def test_an_epoch_equals_a_loop_written_by_hand_exactly(
    prepared: data.Prepared, scaler: bool
) -> None:
    images, labels = pixels(prepared, "train")
    epochs = orders(3)
    expected, expected_weights = by_hand(images, labels, epochs)
    ours = trainer(scaler)
    train, clock = split(prepared, "train"), StepClock(CPU)
    torch.manual_seed(11)
    for indices, losses in zip(epochs, expected, strict=True):
        began = time.perf_counter()
        done = engine.train_epoch(ours, train, indices, clock, [CPU])
        assert done.time_s <= time.perf_counter() - began
        assert done.losses.tolist() == losses
        assert done.losses.dtype == done.scales.dtype == torch.float32
        assert len(done.scales) == len(done.times.step_ms) == TRAIN // 8
        assert done.first_step_s is None
        assert 0 < done.times.step_ms.sum() / 1e3 <= done.time_s
        assert (done.times.wait_ms > 0).all() and (done.times.input_ms > 0).all()
        engine.evaluate(ours.loss, split(prepared, "test"), [torch.arange(5)], CPU)
    weights = ours.loss.network.state_dict()
    assert set(weights) == set(expected_weights)
    for name, value in expected_weights.items():
        assert torch.equal(weights[name], value), name


def test_the_losses_of_replicas_count_by_their_mean() -> None:
    class Replicas(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, images: Tensor, _labels: Tensor) -> Tensor:
            return images * self.weight  # one of each replica

    loss = Replicas()
    parameters = list(loss.parameters())
    update = torch.optim.SGD(parameters, lr=1.0)
    ours = engine.Trainer(
        loss, parameters, update, precision.make_scaler(False, "cpu", 1.0, 1), None
    )
    assert engine.train_step(ours, torch.tensor([2.0, 4.0]), torch.zeros(2)).tolist() == [3.0]
    assert loss.weight.item() == 1.0 - 3.0


def test_the_scale_after_each_step_is_kept_and_is_one_without_a_scaler(
    prepared: data.Prepared,
) -> None:
    train = split(prepared, "train")
    (indices,) = orders(1)
    done = engine.train_epoch(trainer(True), train, indices, StepClock(CPU), [CPU])
    # It doubles after every third good step.
    assert done.scales.tolist() == [2.0**8, 2.0**8, 2.0**9, 2.0**9, 2.0**9, 2.0**10]
    done = engine.train_epoch(trainer(False), train, indices, StepClock(CPU), [CPU])
    assert done.scales.tolist() == [1.0] * 6


@pytest.mark.parametrize("stop_before", [0, 1, 4, 6, 99])
def test_go_on_is_asked_before_each_step_and_ends_the_epoch_early(
    prepared: data.Prepared, stop_before: int
) -> None:
    (indices,) = orders(1)
    asked: list[int] = []

    def go_on(step: int) -> bool:
        asked.append(step)
        return step < stop_before

    ours = trainer()
    torch.manual_seed(11)
    done = engine.train_epoch(
        ours, split(prepared, "train"), indices, StepClock(CPU), [CPU], go_on=go_on
    )
    steps = min(stop_before, 6)
    assert len(done.losses) == len(done.scales) == len(done.times.step_ms) == steps
    assert asked == list(range(min(stop_before + 1, 6)))
    images, labels = pixels(prepared, "train")
    (expected,), weights = by_hand(images, labels, [indices[:steps]])
    assert done.losses.tolist() == expected
    mine = ours.loss.network.state_dict()
    assert all(torch.equal(mine[name], value) for name, value in weights.items())


def test_an_epoch_in_two_parts_is_the_same_epoch(prepared: data.Prepared) -> None:
    (indices,) = orders(1)
    train = split(prepared, "train")
    found = []
    for parts in ([indices], [indices[:2], indices[2:]]):
        ours = trainer()
        torch.manual_seed(11)
        done = [engine.train_epoch(ours, train, part, StepClock(CPU), [CPU]) for part in parts]
        found.append(torch.cat([part.losses for part in done]))
    assert torch.equal(*found)


def test_the_first_step_is_timed_where_asked(prepared: data.Prepared) -> None:
    (indices,) = orders(1)
    train = split(prepared, "train")
    done = engine.train_epoch(
        trainer(), train, indices, StepClock(CPU), [CPU], time_first_step=True
    )
    assert done.first_step_s is not None
    assert done.times.step_ms[0] / 1e3 <= done.first_step_s < done.time_s
    for steps in (0, 1):
        done = engine.train_epoch(
            *(trainer(), train, indices, StepClock(CPU), [CPU]),
            go_on=lambda step, steps=steps: step < steps,  # type: ignore[misc]
            time_first_step=True,
        )
        assert (done.first_step_s is not None) == (steps == 1)


def test_times_can_be_off_without_changing_the_losses(prepared: data.Prepared) -> None:
    (indices,) = orders(1)
    train = split(prepared, "train")
    found = []
    for enabled in (True, False):
        ours = trainer()
        torch.manual_seed(11)
        clock = StepClock(CPU, enabled)
        done = engine.train_epoch(ours, train, indices, clock, [CPU])
        found.append(done.losses.tolist())
        assert len(done.times.step_ms) == (6 if enabled else 0)
    assert found[0] == found[1]


@pytest.mark.parametrize("steps", [0, 1, 255, 256, 257, 600])
def test_the_values_of_many_steps_are_all_kept_in_order(steps: int) -> None:
    values = engine._Values(CPU)
    for step in range(steps):
        values.add(torch.tensor([float(step)]))
    joined = values.joined()
    assert joined.dtype == torch.float32
    assert joined.tolist() == list(range(steps))


# ------------------------------------------------------------------ evaluation


def answers(prepared: data.Prepared) -> tuple[float, int, float]:
    """Correct answers, images and summed loss by numpy, in float64."""
    images, labels = pixels(prepared, "test")
    with torch.no_grad():
        logits = network().eval()(images).double().numpy()
    truth = labels.numpy()
    log_sum = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    losses = log_sum - logits[np.arange(len(truth)), truth]
    return float((logits.argmax(1) == truth).sum()), len(truth), float(losses.sum())


def evaluated(prepared: data.Prepared, batches: list[Tensor]) -> Tensor:
    loss, asked = ClassifierLoss(network(), "cpu", None), list[int]()
    totals = engine.evaluate(loss, split(prepared, "test"), batches, CPU, asked.append)
    assert asked == list(range(len(batches)))  # a sign of life before each
    return totals


@pytest.mark.parametrize("batch", [1, 4, 5, 23, 64])
def test_an_evaluation_counts_what_numpy_counts(prepared: data.Prepared, batch: int) -> None:
    correct, images, loss = answers(prepared)
    totals = evaluated(prepared, list(torch.arange(TEST).split(batch)))
    assert totals.dtype == torch.float64 and totals.shape == (3,)
    assert totals[:2].tolist() == [correct, images]
    assert 0 < correct < images
    assert totals[2].item() == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_the_sums_of_all_ranks_shards_are_the_whole(prepared: data.Prepared, world: int) -> None:
    whole = evaluated(prepared, data.eval_batches(TEST, 5, 0, 1))
    parts = [evaluated(prepared, data.eval_batches(TEST, 5, rank, world)) for rank in range(world)]
    total = torch.stack(parts).sum(0)
    assert total[:2].tolist() == whole[:2].tolist()
    assert total[1] == TEST
    assert total[2].item() == pytest.approx(whole[2].item(), rel=1e-12)
    if world == 8:  # five batches: three ranks have none
        assert [int(part[1]) for part in parts] == [5, 5, 5, 5, 3, 0, 0, 0]


def test_an_evaluation_switches_dropout_off_and_keeps_no_gradients(
    prepared: data.Prepared,
) -> None:
    loss = ClassifierLoss(network(dropout=0.9), "cpu", None).train()
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    test = split(prepared, "test")
    batches = [torch.arange(TEST)]
    state = torch.get_rng_state()
    one = engine.evaluate(loss, test, batches, CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, engine.evaluate(loss, test, batches, CPU))
    assert not one.requires_grad and not loss.training
    # Batch norm's running figures too are as they were.
    assert all(torch.equal(before[name], value) for name, value in loss.state_dict().items())


def test_training_goes_on_in_training_mode_after_an_evaluation(prepared: data.Prepared) -> None:
    ours = trainer()
    engine.evaluate(ours.loss, split(prepared, "test"), [torch.arange(4)], CPU)
    modes: list[bool] = []
    ours.loss.network[4].register_forward_hook(lambda module, *_: modes.append(module.training))
    engine.train_epoch(ours, split(prepared, "train"), orders(1)[0], StepClock(CPU), [CPU])
    assert modes == [True] * 6


def test_an_evaluation_compiles_nothing(prepared: data.Prepared) -> None:
    loss, compiled = ClassifierLoss(network(), "cpu", None), []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        compiled.append(graph)
        return graph.forward

    loss.network.compile(backend=backend)
    engine.evaluate(loss, split(prepared, "test"), [torch.arange(4)], CPU)
    assert compiled == []
    loss.network(torch.zeros(2, 3, SIZE, SIZE))
    assert len(compiled) == 1


def test_an_evaluation_uses_the_cells_precision(prepared: data.Prepared) -> None:
    seen = precision.Observed()
    loss = ClassifierLoss(network(), "cpu", torch.bfloat16)
    with precision.observe(loss.network, seen):
        totals = engine.evaluate(loss, split(prepared, "test"), [torch.arange(TEST)], CPU)
    assert seen.dtypes == {"bfloat16"}
    assert totals.isfinite().all() and totals[1] == TEST
