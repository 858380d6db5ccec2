# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start gpusim from the installed archive or with `python3 -m gpusim`."""

import sys

from gpusim.cli import main

sys.exit(main())
