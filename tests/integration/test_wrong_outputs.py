"""A network of one's own with a wrong number of outputs: `invalid` before its first update."""

import pytest

from amp_sweep import record
from tests.conftest import CommandLine

MODULE = """
from torch import nn


class Three(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, 3))

    def forward(self, images):
        return self.body(images)


class Pair(Three):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.body[2] = nn.Linear(192, num_classes)

    def forward(self, images):
        scores = self.body(images)
        return (scores, scores) if self.training else scores
"""


@pytest.mark.slow
def test_it_is_invalid_in_words_and_nothing_was_trained(command: CommandLine) -> None:
    (command.folder / "mine.py").write_text(MODULE)
    run = command.train(
        *("-m", "model.name=mine:Three,mine:Pair", "parallel=none,ddp", "precision=scaler"),
        *("data.image_size=16", "epochs=1"),
    )
    assert run.code == 1
    assert "Traceback" not in run.text
    paths = record.find(command.folder / "outputs" / "matrix")
    found = [record.read(path) for path in paths]
    said = {(r.cell["model"], r.cell["parallel"]): (r.error or {})["message"] for r in found}
    logits = "the network's logits: expected"
    assert said == {
        ("mine:Three", "none"): f"model.name=mine:Three: {logits} [64, 10], got [64, 3]",
        ("mine:Three", "ddp"): f"model.name=mine:Three: {logits} [32, 10], got [32, 3]",
        ("mine:Pair", "none"): f"model.name=mine:Pair: {logits} [64, 10], got tuple",
        ("mine:Pair", "ddp"): f"model.name=mine:Pair: {logits} [32, 10], got tuple",
    }
    for one in found:
        assert one.status == record.INVALID
        assert one.epochs == []
    for words in said.values():
        assert words in " ".join(run.text.split())
