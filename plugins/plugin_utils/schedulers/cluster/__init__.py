# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manage objects that belong to a cluster and not to a node. Pure: no I/O.

model        hosts of the inventory in a cluster, and the request
quotas       quotas of teams, as objects of Kueue
hyper_nodes  top-of-rack switches, as objects of Volcano
plan         entry point: compare all desired objects with the cluster
"""
