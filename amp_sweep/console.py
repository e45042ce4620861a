"""The console scripts: as `python -m` of the same commands, with Ctrl-C quiet in their imports too.

They are found by their names in pyproject.toml. Nothing heavy may be imported up here.
"""

from amp_sweep import ctrl_c, streams


def train() -> None:
    """`amp-sweep-train`."""
    ctrl_c.ends_this_process()
    streams.open_missing()
    from amp_sweep import train as command

    command.main()


def evaluate() -> int:
    """`amp-sweep-evaluate`."""
    ctrl_c.ends_this_process()
    streams.open_missing()
    from amp_sweep import evaluate as command

    return command.main()


def status() -> int:
    """`amp-sweep-status`."""
    ctrl_c.ends_this_process()
    streams.open_missing()
    from amp_sweep import status as command

    return command.main()


def explain() -> int:
    """`amp-sweep-explain`."""
    ctrl_c.ends_this_process()
    streams.open_missing()
    from amp_sweep import explain as command

    return command.main()
