# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List how sharing techniques are written in layouts. Imports nothing that looks at a host, plans or changes it."""

from __future__ import annotations

from .form import Form
from .mig.form import MigForm
from .mps.form import MpsForm
from .time_slicing.form import TimeSlicingForm
from .vgpu.form import VgpuForm

#: Those of techniques that share a whole GPU.
WHOLE: tuple[Form, ...] = (
    TimeSlicingForm(),
    MpsForm(),
    VgpuForm(),
)
#: Those of techniques that share instances of a GPU too.
INSIDE = tuple(form for form in WHOLE if form.inside_mig)
#: Tenants are described before instances are, and instances before the GPU as a whole.
FORMS: tuple[Form, ...] = (*WHOLE, MigForm(INSIDE))

#: The ways of sharing that have a part of their own name in the entry.
PARTS = tuple(sorted(form.key for form in FORMS))
#: All ways of sharing. The first two need no part.
SHARINGS = ("exclusive", "shared", *PARTS)
