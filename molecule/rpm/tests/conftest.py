# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run roles on hosts of the Red Hat family, and read the hosts' state."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.lab.lab_fixtures import lab_host

sys.path.insert(0, str(Path(__file__).resolve().parent))

__all__ = ["lab_host"]
