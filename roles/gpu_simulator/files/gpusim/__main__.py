# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Entry point of the installed archive and of `python3 -m gpusim`."""

import sys

from gpusim.cli import main

sys.exit(main())
