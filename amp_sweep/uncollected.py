"""Imported first by the server that forks ranks: no garbage collection while it imports.

Nearly nothing of that is garbage, and each collection walks over all that is there by then: a tenth
of the time that PyTorch takes to import. `frozen`, imported last, turns it on again.
"""

import gc

gc.disable()
