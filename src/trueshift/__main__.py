"""``python -m trueshift`` is the command ``trueshift``."""

import sys

from trueshift.cli.main import main

sys.exit(main())
