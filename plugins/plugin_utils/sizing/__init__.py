# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What workloads need, from their history: how sure that is, who may share a card. Pure: docs/sizing.md.

model     Fleet (histories on one clock) and Policy (every number of the rules), checked
evidence  how much a history shows, and whether that is enough
chance    distributions of memory and duty, the fleet's experience mixed into each workload's own
demand    what one workload needs
sharing   which workloads share a card of a given size
"""
