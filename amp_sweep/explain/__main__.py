"""`python -m amp_sweep.explain RUN_DIR`."""

import sys

from amp_sweep.explain import main

sys.exit(main())
