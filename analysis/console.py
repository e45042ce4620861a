"""The console script `amp-sweep-report`: as `python -m analysis`."""

from analysis import ctrl_c


def report() -> int:
    """The entry point."""
    ctrl_c.ends_this_process()
    from analysis.__main__ import main

    return main()
