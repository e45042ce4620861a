"""Train one cell, or with -m a sweep of cells: `python -m amp_sweep.train`."""

import signal
import sys

from amp_sweep import ctrl_c, streams

if __name__ == "__main__":
    ctrl_c.ends_this_process()  # before the imports, which take long
    streams.open_missing()

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from amp_sweep import config, legality, sweep
from amp_sweep.cells import NOT_COMPLETED, Cell

# Hydra's options that print and train nothing.
TELLS = frozenset({"-h", "--help", "--hydra-help", "-c", "--cfg", "-i", "--info"})


class CellNotCompleted(Exception):
    """For Hydra's own sweepers and launchers, which count exceptions."""


def _task(composed: DictConfig) -> None:
    hydra_config = HydraConfig.get()
    alone = hydra_config.mode == RunMode.RUN
    launcher = hydra_config.runtime.choices["hydra/launcher"]
    if alone and launcher != "basic":
        # Hydra would silently train on this machine.
        sys.stderr.write(f"error: hydra/launcher={launcher} needs a multirun: add -m\n")
        sys.exit(NOT_COMPLETED)
    cell = Cell(config.resolve(composed), tuple(hydra_config.overrides.task))
    code = sweep.run([cell])
    if alone:
        sys.exit(code)
    if code:
        raise CellNotCompleted(f"{cell.label}: see {cell.root}")


@ctrl_c.ends_the_command()
def main() -> None:
    """The entry point; Hydra runs once, in this process."""
    if sys.platform == "win32":
        sys.exit("error: native Windows is not supported; use WSL 2")
    # Hydra takes -m before the overrides or after them, but not between: a person may not care.
    for flag in ("-m", "--multirun"):
        if flag in sys.argv:
            sys.argv.remove(flag)
            sys.argv.insert(1, flag)
    problems = legality.check_arguments(sys.argv[1:])
    for problem in problems:
        sys.stderr.write(f"error: {problem}\n")
    if problems:
        sys.exit(1)
    if not TELLS.isdisjoint(argument.split("=")[0] for argument in sys.argv[1:]):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head`: ends as other programs do
    config.find_own_code()
    config.register()
    hydra.main(version_base="1.3", config_path=str(config.conf_dir()), config_name="config")(
        _task
    )()


if __name__ == "__main__":
    main()
