"""hydra-submitit's SLURM launcher, which submits what it is given and leaves the rest to us."""

import contextlib
import io
import shlex
import sys
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra_plugins.hydra_submitit_launcher import (
    config as options,
)
from hydra_plugins.hydra_submitit_launcher import (
    submitit_launcher as stock,
)


@dataclass
class AmpSlurmConfig(options.SlurmQueueConf):  # type: ignore[misc]
    """hydra-submitit's options, unchanged."""

    _target_: str = "hydra_plugins.amp_sweep.slurm.AmpSlurmLauncher"


# Every option of the launcher that submitit does not ask a scheduler for.
NOT_SCHEDULER = ("submitit_folder", "max_num_timeout")


class AmpSlurmLauncher(stock.SlurmLauncher):  # type: ignore[misc]
    """Chosen by `hydra/launcher=slurm`; its options are hydra-submitit's."""

    def send(self, jobs: list[Any], extra: dict[str, Any]) -> list[str]:
        """Submit `jobs` as one array; their ids. Raises submit.SubmissionRefused.

        `extra` has what the cells need where the settings leave it open, and the folder of the
        code under `snapshot`.
        """
        # Late, since Hydra imports every plug-in at every start.
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        from amp_sweep import slurm
        from amp_sweep.submit import SubmissionRefused

        params = {**self.params, **extra}
        snapshot = params.pop("snapshot", None)
        python = shlex.quote(sys.executable)
        if snapshot is not None:
            python += " -P"  # the working directory must not shadow the copy
            path = f"export PYTHONPATH={shlex.quote(snapshot)}${{PYTHONPATH:+:$PYTHONPATH}}"
            params["setup"] = [path, *(params.get("setup") or [])]
        # A node that fails must not leave the others waiting for it.
        srun = ["--kill-on-bad-exit=1"]
        if params.get("cpus_per_task"):
            # Since SLURM 22.05 srun no longer takes this from the batch script, and gives one core.
            srun.append(f"--cpus-per-task={params['cpus_per_task']}")
        params["srun_args"] = srun
        shared = options.BaseQueueConf.__dataclass_fields__
        parameters = {
            name if name in shared else f"slurm_{name}": value
            for name, value in params.items()
            if name not in NOT_SCHEDULER and value is not None
        }
        with slurm.outside_of_any_job():
            try:
                executor = submitit.AutoExecutor(
                    folder=params["submitit_folder"],
                    cluster="slurm",
                    slurm_max_num_timeout=params["max_num_timeout"],
                    slurm_python=python,
                )
                executor.update_parameters(**parameters)
                # What submitit prints of a refusal is what it raises, too.
                with contextlib.redirect_stderr(io.StringIO()) as printed:
                    submitted = executor.submit_array(jobs)
            except (FailedJobError, FailedSubmissionError, RuntimeError) as error:
                raise SubmissionRefused(str(error)) from error
            sys.stderr.write(printed.getvalue())
        return [job.job_id for job in submitted]


ConfigStore.instance().store(
    group="hydra/launcher", name="amp_sweep_slurm", node=AmpSlurmConfig, provider="amp_sweep"
)
