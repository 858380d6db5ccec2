# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Estimate the needs of workloads, and group those that can share a card. Pure.

The needs are estimated from histories. docs/sizing.md explains the rules.

model     Fleet (histories at common times) and Policy (parameters of the rules)
evidence  amount and coverage of a history
chance    probability distributions of memory and duty, from a workload's own history and the fleet's
margin    margin on memory, learnt from the fleet
demand    need of a workload
sharing   which workloads share a card of a given size
"""
