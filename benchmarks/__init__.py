"""Comparisons with other tools and with the machine's limits; results lie in `results/`."""
