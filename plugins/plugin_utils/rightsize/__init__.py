# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Propose a better layout of the fleet, from an audit and histories.

It is not applied. docs/rightsize.md.

model      frozen values
wishes     settings of workloads in the inventory
observed   GPUs of a host, as planners need them
today      workloads on each GPU, and excluded GPUs, from hosts and the audit
series     histories of workloads that may change, in limited amounts
mode       how a workload can share a GPU, with the reason
teams      workloads that can take turns on a card, by their combined histories
rearrange  packing problems and their solutions
overlay    the `gpu_layout` of a changed host, and its plan
risk       risks for each workload
reclaim    idle units and containers
make       a proposal, from the request to the finished object
sums       totals and one-line summary
write      inventory overlay, YAML, JSON and HTML
"""
