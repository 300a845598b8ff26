"""`python -m colonnade` is the command line."""

import os
import sys

from colonnade.cli.main import main

code = main()
if "--events" in sys.argv:  # a supervised party: all is written; threads of gRPC are not waited for
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
