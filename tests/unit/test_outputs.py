"""A network with other outputs than its data has classes is told so before its first update."""

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._utils import ExceptionWrapper

from amp_sweep.precision import ClassifierLoss
from amp_sweep.worker.build import Invalid, WrongOutputs, check_first_outputs


class Own(nn.Module):
    """A linear layer whose result is changed by `change`."""

    def __init__(self, logits: int, change: Callable[[Tensor], object] = lambda scores: scores):
        super().__init__()
        self.layer = nn.Linear(12, logits)
        self.change = change

    def forward(self, images: Tensor) -> object:
        return self.change(self.layer(images.flatten(1)))


IMAGES, LABELS = torch.zeros(64, 3, 2, 2), torch.arange(64) % 10


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Own(3), "expected [64, 10], got [64, 3]"),
        (Own(12), "expected [64, 10], got [64, 12] (model.outputs=12 asks for that many)"),
        (Own(10, lambda scores: scores.sum(dim=0)), "expected [64, 10], got [10]"),
        (Own(10, lambda scores: scores.unsqueeze(-1)), "expected [64, 10], got [64, 10, 1]"),
        (Own(10, lambda scores: scores[:32]), "expected [64, 10], got [32, 10]"),
        (Own(10, lambda scores: (scores, scores)), "expected [64, 10], got tuple"),
        (Own(10, lambda scores: None), "expected [64, 10], got NoneType"),
    ],
)
def test_wrong_outputs_are_told_before_the_loss(network: Own, words: str) -> None:
    check_first_outputs(network, "mine:Own", 10)
    with pytest.raises(Invalid) as told:
        ClassifierLoss(network, "cpu", None)(IMAGES, LABELS)
    assert str(told.value) == f"model.name=mine:Own: the network's logits: {words}"


def test_right_outputs_are_looked_at_once_and_leave_nothing_behind() -> None:
    network = Own(10)
    check_first_outputs(network, "mine:Own", 10)
    loss = ClassifierLoss(network, "cpu", None)
    assert loss(IMAGES, LABELS).isfinite()
    assert not network._forward_hooks
    network.change = lambda scores: scores[:, :10]
    assert loss(IMAGES[:7], LABELS[:7]).isfinite()


def test_what_dataparallel_raises_anew_keeps_its_words() -> None:
    network = Own(3)
    check_first_outputs(network, "mine:Own", 10)
    try:
        network(IMAGES)
    except WrongOutputs:
        wrapped = ExceptionWrapper(sys.exc_info(), where="in replica 0 on device 0")
    with pytest.raises(WrongOutputs) as told:
        wrapped.reraise()
    assert str(told.value) == (
        "model.name=mine:Own: the network's logits: expected [64, 10], got [64, 3]"
    )
