# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""On lab hosts: read ansible-core's part of a module from compiled files. Without pathlib, whose import would take longer.

Each module comes with all that it imports, as source in an archive, and compiling ansible-core's part of it takes most of the
module's time. The checkout's own ansible-core is mounted on lab hosts, with what earlier modules compiled. The collection's code
comes from the archive, as on a real host. The connection plugin names this folder in PYTHONPATH.
"""

import importlib.machinery
import os
import sys

#: Where start.yml mounts ansible/module_utils.
MOUNTED = "/opt/openfleet-lab/module_utils"
PACKAGE = "ansible.module_utils"


class Compiled:
    """Find modules of ansible.module_utils in the mounted folder, where it has the release that the archive is of."""

    same_release = None

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if not name.startswith(PACKAGE + ".") or not cls.is_same_release():
            return None
        parent = name.rpartition(".")[0].replace(".", "/")[len("ansible/module_utils") :]
        return importlib.machinery.PathFinder.find_spec(name, [MOUNTED + parent])

    @classmethod
    def is_same_release(cls):
        if cls.same_release is None:
            archive = getattr(sys.modules.get("ansible"), "__version__", None)
            try:
                with open(MOUNTED + "/ansible_release.py") as file:  # noqa: PTH123
                    cls.same_release = "__version__ = %r" % archive in file.read().replace('"', "'").splitlines()
            except OSError:
                cls.same_release = False
        return cls.same_release


# What a module starts is as it is without this.
sys.path.remove(os.environ.pop("PYTHONPATH"))
sys.meta_path.insert(0, Compiled)
