# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the cards of GPUs with leases by the key of their divider, for leases."""

from __future__ import annotations

from typing import Any, Mapping

from ..model import Gpu
from .nvidia.mig.lease_card import MigCard

CARDS: Mapping[str, Any] = {Gpu.divider: MigCard}
