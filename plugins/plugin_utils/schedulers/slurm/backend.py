# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer GPUs as Slurm's generic resources (GRES)."""

from __future__ import annotations

from ....module_utils.layout.leases import SLURM
from ..model import Node, Offer
from .offer import KEY, offer


class Slurm:
    """The GRES of a Slurm node."""

    key = KEY
    applies = False
    allocator = SLURM

    def offer(self, node: Node) -> Offer:
        """Return the GRES of the node's GPUs, or the refused entries."""
        return offer(node)
