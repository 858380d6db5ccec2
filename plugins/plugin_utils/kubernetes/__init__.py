# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Map a `gpu_layout` to the Kubernetes resources of a node.

Pure: no I/O. See docs/kubernetes-mapping.md.

model          desired GPUs of a node, and the result of a mapping
node           find the entry of each GPU
device_plugin  NVIDIA's device plugin
dra            NVIDIA's DRA driver
vgpu_plugins   HAMi and Volcano's vGPU plugin, which use the same node configuration
mapping        entry point: select the backend, and list backends that can express refused entries
text           format the mapping as lines of a plan
cluster        compare a cluster's node with its mapping, and undo the changes
operator       detect NVIDIA's GPU operator on a node and states that block a change
"""
