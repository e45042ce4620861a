"""Hydra's basic sweeper, with the running left to `amp_sweep.sweep`."""

import sys
from dataclasses import dataclass
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser

from hydra_plugins.amp_sweep.slurm import AmpSlurmLauncher


@dataclass
class AmpSweeperConfig:
    """As the basic sweeper's, without batches: a sweep is checked as a whole."""

    _target_: str = "hydra_plugins.amp_sweep.sweeper.AmpSweeper"
    params: dict[str, str] | None = None


class AmpSweeper(BasicSweeper):
    """Composes every cell first, then runs the sweep and ends the process with its code."""

    def __init__(self, params: dict[str, str] | None = None) -> None:
        super().__init__(max_batch_size=None, params=params)

    def sweep(self, arguments: list[str]) -> Any:
        """Run the cells of `arguments`. Raises SystemExit with the sweep's exit code."""
        # Late, since Hydra imports every plug-in at every start.
        from amp_sweep import config, sweep
        from amp_sweep.cells import Cell

        assert self.hydra_context is not None and self.config is not None
        assert self.launcher is not None
        loader, launcher = self.hydra_context.config_loader, self.launcher
        local = self.config.hydra.runtime.choices["hydra/launcher"] == "basic"

        parser = OverridesParser.create(config_loader=loader)
        parsed = parser.parse_overrides([*self._parse_config(), *arguments])
        cells = []
        for overrides in self.split_arguments(parsed, None)[0]:
            composed = loader.load_sweep_config(self.config, list(overrides))
            task = [item for item in overrides if not item.startswith("hydra")]
            cells.append(Cell(config.resolve(composed), tuple(task)))
        if local:
            sys.exit(sweep.run(cells))
        if isinstance(launcher, AmpSlurmLauncher):
            sys.exit(self._submit(launcher, cells))

        def launch(left: list[Cell], *_: Any) -> None:
            launcher.launch([list(cell.overrides) for cell in left], initial_job_idx=0)

        sys.exit(sweep.run(cells, launch))

    def _submit(self, launcher: AmpSlurmLauncher, cells: list[Any]) -> int:
        from amp_sweep import submit, sweep
        from amp_sweep.cells import NOT_COMPLETED

        problems = submit.layout_problems(launcher.params, cells)
        for problem in problems:
            sys.stderr.write(f"error: {problem}\n")
        if problems:
            return NOT_COMPLETED
        return sweep.run(
            cells,
            lambda left, screen, interrupts: submit.run(
                left, launcher.params, launcher.send, screen, interrupts
            ),
        )


ConfigStore.instance().store(
    group="hydra/sweeper", name="amp_sweep", node=AmpSweeperConfig, provider="amp_sweep"
)
