# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run openfleet.gpu.kubernetes_eviction with a kubeconfig of the controller."""

from __future__ import annotations

from typing import Any

from ..plugin_utils.printable_action import PrintableAction


class ActionModule(PrintableAction):
    """Find the kubeconfig in Ansible's search path, as kubernetes.core does."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        kubeconfig = self._task.args.get("kubeconfig")
        if kubeconfig and self._connection.transport == "local":
            # A file encrypted with Ansible Vault is decrypted into a temporary file.
            path = self._loader.get_real_file(self._find_needle("files", kubeconfig), decrypt=True)
            self._task.args = {**self._task.args, "kubeconfig": path}
        return super().run(tmp, task_vars)
