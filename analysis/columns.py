"""The columns of the tidy table: their names and their types.

A record's fields keep their own names; units are in the names.
"""

from collections.abc import Iterable
from typing import Any

from analysis.values import FLAG, FLOAT, INT, TEXT, kind_of

# The record's sections that become columns. Where two have a field of one name, the
# earlier section keeps it and the later one's column begins with its section.
SECTIONS: dict[str, dict[str, str]] = {
    "cell": {"model": TEXT, "data": TEXT, "parallel": TEXT, "precision": TEXT, "seed": INT},
    "metrics": {
        "test_accuracy": FLOAT,
        "best_test_accuracy": FLOAT,
        "test_loss": FLOAT,
        "train_loss": FLOAT,
        "train_time_s": FLOAT,
        "wall_time_s": FLOAT,
        "startup_s": FLOAT,
        "first_step_s": FLOAT,
        "images_per_s": FLOAT,
        "step_ms_p50": FLOAT,
        "step_ms_p95": FLOAT,
        "step_ms_p99": FLOAT,
        "data_wait_frac": FLOAT,
        "peak_allocated_mib": FLOAT,
        "peak_reserved_mib": FLOAT,
        "peak_cached_mib": FLOAT,
        "peak_rss_mib": FLOAT,
        "peak_rss_above_mib": FLOAT,
        "memory_parameters_mib": FLOAT,
        "memory_gradients_mib": FLOAT,
        "memory_optimizer_mib": FLOAT,
        "memory_activations_mib": FLOAT,
        "memory_activations_saved_mib": FLOAT,
        "memory_input_mib": FLOAT,
        "memory_input_resident_mib": FLOAT,
        "memory_workspace_mib": FLOAT,
        "memory_unattributed_mib": FLOAT,
        "memory_rounding_mib": FLOAT,
        "memory_probe_peak_mib": FLOAT,
        "compile_s": FLOAT,
        "energy_j": FLOAT,
        "energy_j_per_image": FLOAT,
        "price_per_hour": FLOAT,
        "cost": FLOAT,
        "flops_per_image": FLOAT,
        "achieved_tflops": FLOAT,
        "ceiling_tflops": FLOAT,
        "ceiling_gb_per_s": FLOAT,
        "mfu": FLOAT,
        "share_input": FLOAT,
        "share_gaps": FLOAT,
        "share_compute": FLOAT,
        "share_memory": FLOAT,
        "share_communication": FLOAT,
        "communication_frac": FLOAT,
        "input_work_frac": FLOAT,
        "diagnosis": TEXT,
        "diagnosis_evidence": TEXT,
        "optimizer_steps": INT,
        "scaler_final_scale": FLOAT,
        "scaler_skipped_steps": INT,
        "underflow_frac": FLOAT,
        "underflow_frac_unscaled": FLOAT,
        "underflow_frac_scaled": FLOAT,
        "underflow_scale": FLOAT,
        "contended": FLAG,
    },
    "effective": {
        "parallel": TEXT,
        "device_type": TEXT,
        "device_names": TEXT,
        "world_size": INT,
        "replicas": INT,
        "backend": TEXT,
        "hosts": TEXT,
        "autocast_dtype": TEXT,
        "observed_dtypes": TEXT,
        "observed_dtypes_by_layer": TEXT,
        "scaler_enabled": FLAG,
        "tf32_matmul": FLAG,
        "tf32_cudnn": FLAG,
        "cudnn_benchmark": FLAG,
        "native_bf16": FLAG,
        "memory_format": TEXT,
        "kept_memory": FLAG,
        "huge_pages": FLAG,
        "compile": TEXT,
        "cuda_graph": FLAG,
        "space_to_depth": FLAG,
        "master_weights": FLAG,
        "keep_threads": FLAG,
        "global_batch": INT,
        "per_device_batch": INT,
        "eval_batch": INT,
        "steps": INT,
        "train_images": INT,
        "test_images": INT,
        "data_digest": TEXT,
        "code_digest": TEXT,
        "image_size": INT,
        "outputs": INT,
        "threads": INT,
        "data_placement": TEXT,
        "fused_input": FLAG,
        "pipeline": TEXT,
    },
    "environment": {
        "python": TEXT,
        "torch": TEXT,
        "torchvision": TEXT,
        "cuda": TEXT,
        "driver": TEXT,
        "gpu": TEXT,
        "cpu": TEXT,
        "cores": INT,
        "hostname": TEXT,
        "git_commit": TEXT,
        "git_dirty": FLAG,
        "slurm_job_ids": TEXT,
    },
}

# What a run is, before its sections.
HEAD: dict[str, str] = {
    "name": TEXT,
    "status": TEXT,
    "fingerprint": TEXT,
    "run_dir": TEXT,
    "schema_version": INT,
}

# What follows them: how many devices (on a CPU: processes) shared a batch, the lengths of
# the record's lists, its error and its texts.
TAIL: dict[str, str] = {
    "devices": INT,
    "epochs_done": INT,
    "segments": INT,
    "stitched": FLAG,
    "started_at": TEXT,
    "ended_at": TEXT,
    "error_type": TEXT,
    "error_message": TEXT,
    "error_rank": INT,
    "error_exitcode": INT,
    "notes": TEXT,
    "overrides": TEXT,
}

# Lists with a number per device or rank: the column holds the largest, `<name>_each` all.
PER_DEVICE = frozenset(
    {
        "peak_allocated_mib",
        "peak_reserved_mib",
        "peak_cached_mib",
        "peak_rss_mib",
        "peak_rss_above_mib",
        "memory_parameters_mib",
        "memory_gradients_mib",
        "memory_optimizer_mib",
        "memory_activations_mib",
        "memory_activations_saved_mib",
        "memory_input_mib",
        "memory_input_resident_mib",
        "memory_workspace_mib",
        "memory_unattributed_mib",
        "memory_rounding_mib",
        "memory_probe_peak_mib",
    }
)

# (section, field) -> (column, type)
Columns = dict[tuple[str, str], tuple[str, str]]


def columns_of(found: Iterable[tuple[str, str, Any]]) -> Columns:
    """The columns for all known fields, then for those `found` (section, field, value).

    The type of a field that this version does not know follows from all of its values.
    """
    columns: Columns = {}
    taken = {*HEAD, *TAIL}
    unknown: dict[tuple[str, str], list[Any]] = {}
    for section, field, value in found:
        if field not in SECTIONS[section]:
            unknown.setdefault((section, field), []).append(value)
    types = {(s, f): kind for s, known in SECTIONS.items() for f, kind in known.items()}
    types |= {place: kind_of(values) for place, values in unknown.items()}
    for (section, field), kind in types.items():
        name = f"{section}_{field}" if field in taken else field
        taken.add(name)
        columns[section, field] = (name, kind)
    return columns
