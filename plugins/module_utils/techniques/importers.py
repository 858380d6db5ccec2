# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the importers of other tools' configurations."""

from __future__ import annotations

from .mig import parted

#: The converter for configurations of nvidia-mig-parted.
MIG_PARTED = parted.convert
