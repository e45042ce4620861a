"""The whole story of a run, from its record alone: `python -m amp_sweep.explain RUN_DIR`."""

from collections.abc import Sequence

from amp_sweep import ctrl_c


@ctrl_c.ends_the_command()
def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; 1 where a record, or a part of one, cannot be read."""
    from amp_sweep.explain import command  # late: in its imports, too, Ctrl-C is quiet

    return command.main(arguments)
