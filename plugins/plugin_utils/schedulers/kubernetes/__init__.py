# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Share code between the backends for Kubernetes.

backend       comparison of a node in the cluster with its offer, and undo of the changes
api_objects   access to objects of the API
operator      detection of NVIDIA's GPU operator on a node, and of states that block a change
pods          description of the state of pods
drain_patch   patches that drain and resume a node
hami_core     offers of HAMi and of Volcano's vGPU plugin. Both use HAMi-core and the same node configuration.
"""
