"""The faster ways of a cell on two GPUs train as the plain cell does."""

from pathlib import Path

import pytest
import torch

from amp_sweep import record
from tests.conftest import CommandLine
from tests.integration.test_equivalence import losses

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]

# A hundred steps and more, without dropout: the masks of a captured step are others.
SAME = (
    *("data=synthetic", "data.image_size=64", "data.train_images=3328", "data.test_images=64"),
    *("data.batch_size=64", "data.classes=10", "model.width=0.25", "model.dropout=0"),
    *("optimizer.lr=1e-4", "epochs=2", "track.every_steps=1", "measure.probes=false"),
    *("parallel.devices=2", "precision=scaler"),
)
STEPS = 2 * 3328 // 64


def trained(command: CommandLine, name: str, *overrides: str) -> tuple[record.Record, Path]:
    run = command.train(f"name={name}", *SAME, *overrides)
    assert run.code == 0, run.text
    (path,) = record.find(command.folder / "outputs" / name)
    return record.read(path), path.parent


def test_a_step_captured_over_nccl_gives_the_losses_of_the_same_step_kernel_by_kernel(
    command: CommandLine,
) -> None:
    _, plain = trained(command, "plain", "parallel=ddp")
    done, captured = trained(command, "captured", "parallel=ddp", "memory.cuda_graph=true")
    assert done.effective["cuda_graph"] is True
    assert len(losses(captured)) == STEPS
    assert losses(captured) == pytest.approx(losses(plain), abs=2e-3)


def test_everything_together_under_ddp_stays_near_the_plain_cell(command: CommandLine) -> None:
    _, plain = trained(command, "plain", "parallel=ddp")
    done, fast = trained(command, "fast", "parallel=ddp", "memory=fast")
    used = ("cuda_graph", "master_weights", "space_to_depth")
    assert [done.effective[name] for name in used] == [True] * len(used)
    assert losses(fast) == pytest.approx(losses(plain), abs=0.05)


def test_kept_threads_train_as_the_threads_that_data_parallel_starts(
    command: CommandLine,
) -> None:
    _, plain = trained(command, "plain", "parallel=dp")
    done, kept = trained(command, "kept", "parallel=dp", "memory.keep_threads=true")
    assert done.effective["keep_threads"] is True and done.effective["cudnn_benchmark"] is True
    assert losses(kept) == pytest.approx(losses(plain), abs=5e-3)
