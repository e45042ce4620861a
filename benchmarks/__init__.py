"""Comparisons with other tools and with the machine's limits; results lie in `results/`.

What can be run, each told by `--help`, and small on a CPU where it has such an option:

    python -m benchmarks                     # side by side with other loops (contenders/)
    python -m benchmarks.picture             # its results as one picture
    python -m benchmarks.cpu_cells           # cells on a CPU against a loop written by hand
    python -m benchmarks.eager_step          # what the sweep adds to a bare step (in_turns)
    python -m benchmarks.measuring_overhead  # what measuring costs (in_turns)
    python -m benchmarks.figures             # what a record says about a run, from real sweeps
    python -m benchmarks.larger_data         # a folder that does not fit on the device
    python -m benchmarks.growth              # what twice as much costs
    python -m benchmarks.load_scale          # how long many runs take to load and compare

`shared/` is what several of them need, and nothing to run.
"""
