"""The cells of the bare matrix on a CPU, each against a loop written by hand for the same work."""
