# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared by the backends for Kubernetes.

backend       compare a node of the cluster with its offer, and undo the changes
api_objects   read objects of the API
operator      detect NVIDIA's GPU operator on a node and states that block a change
pods          describe which pods are ready
drain_patch   patches that drain and resume a node
vgpu_plugins  offers of HAMi and Volcano's vGPU plugin, which use the same node configuration
"""
