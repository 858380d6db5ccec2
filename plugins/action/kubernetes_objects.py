# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run openfleet.gpu.kubernetes_objects with a kubeconfig of the controller."""

from __future__ import annotations

from .kubernetes_eviction import ActionModule as WithKubeconfig


class ActionModule(WithKubeconfig):
    pass
