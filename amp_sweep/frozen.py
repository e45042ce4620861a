"""Imported last by the server that forks ranks: keeps what is loaded out of garbage collection.

The first full collection in a forked process walks over all that the server imported and, by
writing to it, copies its memory: 0.3 s of a core for each process of a cell.
"""

import gc

gc.collect()
gc.freeze()
