# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer the GPUs of a host to a scheduler. Pure: no I/O.

See docs/kubernetes-mapping.md.

model       desired GPUs of a node, and the offer of a backend
protocol    interface of a backend
registry    the backends by key
node        find the entry of each GPU
offers      entry point: the offer of a backend, and the backends that can express refused entries
request     answer the filter `kubernetes_mapping`
text        format the offer as lines of a plan
kubernetes  shared by all backends for Kubernetes
Each backend has a folder with its offer.
"""
