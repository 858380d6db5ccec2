# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run modules on lab hosts as forks of a process that has loaded ansible-core's code.

Each module comes with all that it imports, as source in an archive. To load it takes a third of a second, most of it for
ansible-core's part, which is the same each time. The connection plugin names this folder in PYTHONPATH. The first module on a
host leaves a process behind that imports ansible-core's part from the checkout's own ansible-core, which is mounted; later
modules are forks of it (warm_ansible.py). What else a module imports comes from its archive, as on a real host, but compiled
once (compiled_code.py). Imports little: each start waits for it.
"""

import importlib.machinery
import os
import sys

#: What start.yml mounts.
FOLDER = "/opt/openfleet-lab"
MOUNTED = FOLDER + "/module_utils"
COMPILED = FOLDER + "/compiled"
#: Goes with the host, as does the process.
RUN = "/run/openfleet-lab"
PACKAGE = "ansible.module_utils"
#: What an interpreter reads at its start: a fork cannot take it over.
AT_START = ("LD_", "LANG", "LC_", "PYTHON")


class Mounted:
    """Find modules of ansible.module_utils in the mounted folder, and other packages of ansible in the module's archive."""

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
    """Provide the packages of the archive, except in a process without an archive."""
    import types

    ansible = sys.modules["ansible"] = types.ModuleType("ansible")
    # ansible-core compares it with the files that ask for a deprecation.
    ansible.__file__, ansible.__path__, ansible.__version__ = FOLDER + "/__init__.py", [], release
    ansible.module_utils = sys.modules[PACKAGE] = types.ModuleType(PACKAGE)
    ansible.module_utils.__path__ = [MOUNTED]


def leave_server(address, release):
    """Start the process that later modules are forks of. It ends with the host."""
    import fcntl

    os.makedirs(RUN, mode=0o700, exist_ok=True)  # noqa: PTH103
    lock = os.open(address + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Another one is being started.
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
    # The lock stays open as long as this process lives.
    os.dup2(lock, 3)
    os.closerange(4, 1024)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.chdir("/")
    sys.path.insert(0, FOLDER)
    import warm_ansible

    sys.path.remove(FOLDER)
    add_packages(release)
    warm_ansible.load()
    warm_ansible.serve(warm_ansible.listen(address))


def main():
    """Decide by how this interpreter was started: Ansible gives it code on standard input, and no argument."""
    # What a module starts is as it is without this.
    sys.path.remove(os.environ.pop("PYTHONPATH"))
    release = _release()
    if os.environ.pop("OPENFLEET_LAB_CORE", None) != release:
        return
    sys.meta_path.insert(0, Mounted)
    sys.path.insert(0, FOLDER)
    import compiled_code

    sys.path.remove(FOLDER)
    compiled_code.keep(COMPILED)
    if len(sys.orig_argv) > 1 or os.getuid() != 0:
        return
    import binascii

    told = sorted(item for item in os.environ.items() if item[0].startswith(AT_START))
    address = "%s/%x" % (RUN, binascii.crc32(repr((sys.executable, sys.version, told)).encode()))
    sys.path.insert(0, FOLDER)
    import warm_client

    sys.path.remove(FOLDER)
    warm_client.run_as_fork(address)
    leave_server(address, release)


def _release():
    """Return the release of the mounted ansible-core, or "" where nothing is mounted."""
    try:
        with open(MOUNTED + "/ansible_release.py") as file:  # noqa: PTH123
            return next(line.split("=")[1].strip(" '\"\n") for line in file if line.startswith("__version__"))
    except (OSError, StopIteration):
        return ""


main()
