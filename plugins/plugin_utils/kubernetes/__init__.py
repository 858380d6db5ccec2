# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Map a `gpu_layout` to what Kubernetes offers of a node's GPUs. Pure: no cluster and no host is asked. docs/kubernetes.md.

model          a node's GPUs as the layout wants them, and the result of a mapping
node           find the entry of each GPU
device_plugin  NVIDIA's device plugin
dra            NVIDIA's DRA driver
vgpu_plugins   HAMi, and Volcano's vGPU plugin, which share a node's configuration
mapping        the way in: choose the backend, and name the backends that can do what it cannot
text           the mapping as lines of a plan
cluster        compare what a cluster has of a node with its mapping, and what to take off it again
operator       find NVIDIA's GPU operator on a node, and what of it is in the way
"""
