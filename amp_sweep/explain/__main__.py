"""`python -m amp_sweep.explain RUN_DIR`."""

import sys

from amp_sweep import streams
from amp_sweep.explain import main

streams.open_missing()
sys.exit(main())
