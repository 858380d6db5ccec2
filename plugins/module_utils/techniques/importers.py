# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List what reads the configurations of other tools as layouts."""

from __future__ import annotations

from .mig import parted

#: Converts what a configuration of nvidia-mig-parted holds.
MIG_PARTED = parted.convert
