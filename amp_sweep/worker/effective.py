"""What really ran, beside what was asked for: the record's `effective`."""

from collections.abc import Sequence
from typing import Any

import torch

from amp_sweep import host_memory
from amp_sweep.worker.build import Cell
from amp_sweep.worker.measured import RankReport


def effective(cell: Cell, ranks: Sequence[RankReport] = ()) -> dict[str, Any]:
    """`ranks` tell what they saw once they have trained."""
    plan = cell.job.plan
    cuda, cpu = cell.device.type == "cuda", cell.device.type == "cpu"
    dtype = cell.autocast_dtype
    return {
        "parallel": cell.config.parallel.name,
        "device_type": cell.device.type,
        "device_names": [name for rank in ranks for name in rank["device_names"]],
        "hosts": [rank["hostname"] for rank in ranks],
        "world_size": plan.world_size,
        "replicas": plan.replicas,
        "backend": plan.backend,
        "autocast_dtype": str(dtype).removeprefix("torch.") if dtype else None,
        "observed_dtypes": sorted({name for rank in ranks for name in rank["observed_dtypes"]}),
        "observed_dtypes_by_layer": [
            row for rank in ranks for row in rank["observed_dtypes_by_layer"]
        ],
        "scaler_enabled": cell.trainer.scaler.is_enabled(),
        "tf32_matmul": torch.backends.cuda.matmul.allow_tf32 if cuda else None,
        "tf32_cudnn": torch.backends.cudnn.allow_tf32 if cuda else None,
        "cudnn_benchmark": torch.backends.cudnn.benchmark if cuda else None,
        "native_bf16": None,
        "memory_format": "channels_last" if cell.channels_last else "contiguous",
        "kept_memory": host_memory.KEPT if cpu else None,
        "huge_pages": host_memory.huge_pages() if cpu else None,
        **vars(cell.speedups),
        "global_batch": plan.global_batch,
        "per_device_batch": plan.device_batch,
        "eval_batch": cell.eval_batch,
        "steps": cell.config.epochs * cell.steps_per_epoch,
        "train_images": cell.prepared.train_count,
        "test_images": cell.prepared.test_count,
        "data_digest": cell.prepared.digest,
        "code_digest": cell.code_digest,
        "data_placement": cell.train.placement,
        "fused_input": cell.train.fused,
        "image_size": cell.config.data.image_size,
        "outputs": cell.outputs,
        "threads": cell.threads,
    }
