# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the techniques that lend quotas, for the lease service."""

from __future__ import annotations

from typing import Callable, Mapping

from .lender import Lender
from .vgpu import model as vgpu
from .vgpu.lender import QuotaLender

#: By value of `sharing`: a function that returns the lender. Its argument is true if only this process simulates the
#: GPUs.
LENDERS: Mapping[str, Callable[[bool], Lender]] = {vgpu.KEY: QuotaLender}
