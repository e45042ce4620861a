"""Imported last by the server that forks ranks: keeps what is loaded out of garbage collection.

The first full collection in a forked process walks over all that the server imported and, by
writing to it, copies its memory: 0.3 s of a core for each process of a cell. The little garbage of
the imports (8 MiB) stays: to find it takes as long, at each start of a server.
"""

import gc

gc.freeze()
gc.enable()
