"""Synthetic records, as many as wanted."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

CELLS = tuple((p, q) for p in ("none", "dp", "ddp") for q in ("fp32", "autocast", "scaler"))
SEEDS = 10
EPOCHS = 20


def _settings(index: int) -> tuple[str, str, int, int, float]:
    """Parallelism, precision, seed, batch size and lr of a run: 90 runs to a table."""
    parallel, precision = CELLS[index % 9]
    table = index // (9 * SEEDS)
    return parallel, precision, index // 9 % SEEDS, 2 ** (4 + table % 8), 1e-4 * (1 + table // 8)


def make_runs(sweep: Path, runs: int) -> int:
    """Write `runs` records below `sweep`, always the same for a number; returns their bytes.

    One in a hundred has failed; every other one is completed.
    """
    from amp_sweep import config, record
    from amp_sweep.paths import RECORD_NAME
    from analysis.columns import PER_DEVICE, SECTIONS
    from analysis.values import FLAG, FLOAT, INT

    base = config.to_dict(config.RunConfig())
    written = 0
    for index in range(runs):
        noise = random.Random(index)
        parallel, precision, seed, batch, lr = _settings(index)
        asked = json.loads(json.dumps(base))
        asked |= {"name": sweep.name, "seed": seed, "epochs": EPOCHS}
        asked["model"] |= {"name": "alexnet", "width": 1.0}
        asked["data"] |= {"name": "cifar10", "batch_size": batch, "image_size": 227}
        asked["optimizer"] |= {"name": "adamw", "lr": lr}
        asked["scheduler"]["name"] = "cosine"
        asked["track"]["name"] = "tensorboard"
        asked["parallel"]["name"], asked["precision"]["name"] = parallel, precision
        failed = index % 100 == 37
        figures: dict[str, Any] = {}
        for name, kind in SECTIONS["metrics"].items():
            value: Any = {
                FLOAT: noise.uniform(0.5, 1.0),
                INT: noise.randrange(20),
                FLAG: False,
            }.get(kind, "undetermined")
            figures[name] = [value] if name in PER_DEVICE else value
        facts: dict[str, Any] = dict.fromkeys(SECTIONS["effective"])
        facts |= {"parallel": parallel, "device_type": "cuda", "device_names": ["NVIDIA H200"]}
        facts |= {"world_size": 1, "replicas": 1, "autocast_dtype": "float16", "steps": 15620}
        facts |= {"observed_dtypes": ["float16"], "global_batch": batch, "train_images": 50000}
        facts |= {"data_digest": hashlib.sha256(b"data").hexdigest(), "memory_format": "contiguous"}
        where: dict[str, Any] = dict.fromkeys(SECTIONS["environment"])
        where |= {"python": "3.12.3", "torch": "2.11.0+cu130", "cuda": "13.0", "cores": 16}
        where |= {"gpu": "NVIDIA H200", "cpu": "Intel(R) Xeon(R)", "hostname": f"node{index % 7}"}
        fingerprint = hashlib.sha256(str((sweep.name, index)).encode()).hexdigest()
        epochs = [
            {
                "epoch": epoch + 1,
                "train_loss": noise.random(),
                "test_accuracy": noise.random(),
                "test_loss": noise.random(),
                "lr": lr,
                "train_time_s": noise.uniform(3, 5),
                "images_per_s": noise.uniform(1e4, 2e4),
            }
            for epoch in range(EPOCHS)
        ]
        values = {
            "schema_version": record.SCHEMA_VERSION,
            "name": sweep.name,
            "fingerprint": fingerprint,
            "status": record.FAILED if failed else record.COMPLETED,
            "cell": {
                "model": "alexnet",
                "data": "cifar10",
                "parallel": parallel,
                "precision": precision,
                "seed": seed,
            },
            "overrides": [
                f"parallel={parallel}",
                f"precision={precision}",
                f"seed={seed}",
                f"data.batch_size={batch}",
                f"optimizer.lr={lr}",
                "experiment=article",
            ],
            "config": asked,
            "effective": facts,
            "metrics": {} if failed else figures,
            "epochs": epochs[:3] if failed else epochs,
            "environment": where,
            "segments": [
                {
                    "started_at": "2026-11-30T09:58:38+00:00",
                    "ended_at": f"2026-11-30T10:{index // 60 % 60:02d}:{index % 60:02d}+00:00",
                    "from_epoch": 0,
                    "to_epoch": EPOCHS,
                    "device": "NVIDIA H200",
                    "torch": "2.11.0+cu130",
                    "wall_s": noise.uniform(60, 120),
                }
            ],
            "notes": ["energy_j: not measured on this device"],
            "error": record.error_of("RuntimeError", "a rank died") if failed else None,
        }
        directory = sweep / f"{parallel}-{precision}-s{seed}-{fingerprint[:8]}"
        directory.mkdir(parents=True)
        text = json.dumps(values, indent=1) + "\n"
        (directory / RECORD_NAME).write_text(text, encoding="utf-8")
        written += len(text)
    return written
