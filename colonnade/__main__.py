"""`python -m colonnade` is the command line."""

import sys

from colonnade.cli.main import main

sys.exit(main())
