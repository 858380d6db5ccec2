# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run modules on lab hosts as forks of a process that has loaded ansible-core.

Ansible sends each module as an archive with the sources of all its imports. Loading the archive takes a third of a
second. Most of that time goes into ansible-core's code, which is the same for every module. The connection plugin puts
this folder into PYTHONPATH. The first module on a host starts a process that imports ansible-core's code from the
checkout, which is mounted on the host. Later modules are forks of that process (warm_ansible.py). The other imports of
a module come from its archive, as on a real host, but are compiled only once (compiled_code.py). This file imports
little, because every start of Python waits for it.
"""

import importlib.machinery
import os
import sys

#: The folder that start.yml mounts.
FOLDER = "/opt/openfleet-lab"
MOUNTED = FOLDER + "/module_utils"
COMPILED = FOLDER + "/compiled"
#: This folder is deleted when the host stops, and so is the process.
RUN = "/run/openfleet-lab"
PACKAGE = "ansible.module_utils"
#: Prefixes of variables that an interpreter reads only at its start. A fork cannot apply them.
AT_START = ("LD_", "LANG", "LC_", "PYTHON")


class Mounted:
    """Find ansible.module_utils in the mounted folder.

    Other packages of ansible are found in the module's archive.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith(PACKAGE + "."):
            folders = [MOUNTED + name.rpartition(".")[0][len(PACKAGE) :].replace(".", "/")]
        elif name.startswith("ansible.") and name != PACKAGE and name.count(".") == 1:
            folders = [entry + "/ansible" for entry in sys.path]
        else:
            return None
        return importlib.machinery.PathFinder.find_spec(name, folders)


def add_packages(release):
    """Create the packages `ansible` and `ansible.module_utils`, which need no archive."""
    import types

    ansible = sys.modules["ansible"] = types.ModuleType("ansible")
    # ansible-core compares this path with the path of the file that reports a deprecation.
    ansible.__file__, ansible.__path__, ansible.__version__ = FOLDER + "/__init__.py", [], release
    ansible.module_utils = sys.modules[PACKAGE] = types.ModuleType(PACKAGE)
    ansible.module_utils.__path__ = [MOUNTED]


def leave_server(address, release):
    """Start the process that later forks itself for each module.

    The process ends when the host stops.
    """
    import fcntl

    os.makedirs(RUN, mode=0o700, exist_ok=True)  # noqa: PTH103
    lock = os.open(address + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Another run is already starting the process.
        os.close(lock)
        return
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        os.close(lock)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    # This process holds the lock until it ends.
    os.dup2(lock, 3)
    os.closerange(4, 1024)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.chdir("/")
    sys.path.insert(0, FOLDER)
    from tests.integration import warm_ansible

    sys.path.remove(FOLDER)
    add_packages(release)
    warm_ansible.load()
    warm_ansible.serve(warm_ansible.listen(address))


def main():
    """Run the module as a fork if Ansible started this interpreter.

    Ansible passes the code on standard input, and no arguments.
    """
    # Child processes of a module must not use this file.
    sys.path.remove(os.environ.pop("PYTHONPATH"))
    release = _release()
    if os.environ.pop("OPENFLEET_LAB_CORE", None) != release:
        return
    sys.meta_path.insert(0, Mounted)
    sys.path.insert(0, FOLDER)
    from tests.integration import compiled_code

    sys.path.remove(FOLDER)
    compiled_code.keep(COMPILED)
    if len(sys.orig_argv) > 1 or os.getuid() != 0:
        return
    import binascii

    told = sorted(item for item in os.environ.items() if item[0].startswith(AT_START))
    address = "%s/%x" % (RUN, binascii.crc32(repr((sys.executable, sys.version, told)).encode()))
    sys.path.insert(0, FOLDER)
    from tests.integration import warm_client

    sys.path.remove(FOLDER)
    warm_client.run_as_fork(address)
    leave_server(address, release)


def _release():
    """Return the release of the mounted ansible-core, or "" if it is not mounted."""
    try:
        with open(MOUNTED + "/ansible_release.py") as file:  # noqa: PTH123
            return next(line.split("=")[1].strip(" '\"\n") for line in file if line.startswith("__version__"))
    except (OSError, StopIteration):
        return ""


main()
