# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer the GPUs of a host to a scheduler. Pure: no I/O.

See docs/kubernetes-mapping.md.

model       desired GPUs of a node, and the offer of a backend
protocol    interface of a backend
registry    mapping from keys to backends
node        search for the layout entry of each GPU
offers      entry point: the offer of a backend, and alternatives for refused entries
request     result of the filter `kubernetes_mapping`
text        lines of a plan for an offer
kubernetes  code that all backends for Kubernetes share
slurm       backend for Slurm

Each backend has a folder with the code of its offer.
"""
