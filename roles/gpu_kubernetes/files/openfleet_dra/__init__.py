# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give leases of GPUs to pods: a DRA plugin of the kubelet.

This code runs on the nodes of a cluster, in its own Python environment.
"""
