# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide when a held GPU is idle (docs/audit-idle.md). Pure.

rhythm    current and longest earlier quiet time of a holder
rule      minimum quiet time of an idle holder
signals   signs of work, and groups of them that are not measured
holidays  days that do not count as quiet
"""
