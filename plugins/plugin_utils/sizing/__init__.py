# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Estimate the needs of workloads from their history, and group those that can share a card. Pure. docs/sizing.md.

model     Fleet (histories at common times) and Policy (every number of the rules)
evidence  amount and coverage of a history
chance    distributions of memory and duty, mixed with those of the fleet
demand    need of a workload
sharing   which workloads share a card of a given size
"""
