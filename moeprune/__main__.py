"""``python -m moeprune`` is the ``moeprune`` command."""

import sys

from moeprune.cli.main import main

sys.exit(main())
