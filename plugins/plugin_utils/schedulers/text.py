# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Format an offer as lines of a plan."""

from __future__ import annotations

from .model import Offer


def lines(offer: Offer, name: str) -> list[str]:
    """Return an offer's lines.

    The first line lists the offered resources. The others list the GPUs that are not offered, and the notes.
    """
    offered = ", ".join("%s %d" % item for item in offer.resources.items()) or "no GPU is offered"
    return ["node %s: %s" % (name, offered), *map(str, offer.left_out), *offer.notes]
