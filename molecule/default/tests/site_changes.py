# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""List site.yml's changes on hosts where only the layout or pynvml has drifted."""

from __future__ import annotations

from tests.lab.fleet import Change
from tests.lab.lab_fixtures import HOSTS

_PLAY, _ROLE = "Apply (in waves, a canary first)", "openfleet.gpu.gpu_layout"
#: Hosts on which pynvml has drifted too: its text, or a mode that lets every user write it.
PYNVML_DRIFTED = ("h100", "l40s")
DRIFT_CHANGES = {
    *(Change(name, _PLAY, f"{_ROLE} : Apply the layout") for name in HOSTS),
    *(Change(name, _PLAY, f"{_ROLE} : Copy pynvml from the controller") for name in PYNVML_DRIFTED),
}
