# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run of site.yml changes on hosts of which only the layout is not as asked."""

from __future__ import annotations

from fleet import Change
from lab_fixtures import HOSTS

LAYOUT_CHANGES = {
    Change(name, "Apply (in waves, a canary first)", "openfleet.gpu.gpu_layout : Apply the layout") for name in HOSTS
}
