# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List how sharing techniques are written in layouts. Imports nothing that looks at a host, plans or changes it."""

from __future__ import annotations

from .form import Form
from .mps.form import MpsForm
from .time_slicing.form import TimeSlicingForm
from .vgpu.form import VgpuForm

FORMS: tuple[Form, ...] = (
    TimeSlicingForm(),
    MpsForm(),
    VgpuForm(),
)

#: The ways of sharing that have a part of their own name in the entry. MIG has no folder here yet.
PARTS = tuple(sorted(("mig", *(form.key for form in FORMS))))
#: All ways of sharing. The first two need no part.
SHARINGS = ("exclusive", "shared", *PARTS)
