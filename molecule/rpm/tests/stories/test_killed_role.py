# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that the next run repairs a driver whose upgrade was killed.

The role, DNF and its scriptlets are killed together.
"""

from __future__ import annotations

import pytest
from rpm_runs import KILL, LOOK, Ask, State, fail_if, is_whole, kill_in, play, script

HOST = "el9"
OLD, NEW = "580.95.05", "580.105.08"
MODULE, LIBRARY = "kmod-nvidia-open-dkms", "libnvidia-ml"
# The journal of a change, and the record of drained clients.
RECORDS = "find /var/lib/openfleet-gpu -name driver.json -o -name drain.json | grep ."


def kill_before(program: str, words: str, loaded: str = "") -> str:
    """Return a shell command that replaces a program with one that kills the run.

    The run is killed when the program gets the given arguments. If `loaded` is set, the driver's module must have this
    version at this time.
    """
    # The task that reboots the host searches this folder before /usr/bin. It searches /usr/local/sbin last.
    path = "/usr/sbin/" + program
    state = "$(cat /sys/module/nvidia/version) $*"
    rest = f'case "{state}" in {loaded}*"{words}"*) rm {path}; ;; *) exec /usr/bin/{program} "$@" ;; esac\n'
    return script(path, "#!/bin/sh\n" + rest + KILL)


# Package, version and type of the scriptlet in which the run is killed.
SCRIPTLETS = {
    "before the first package": (LIBRARY, NEW, "pre"),
    "the first package is installed": (LIBRARY, NEW, "post"),
    "before the modules": (MODULE, NEW, "pre"),
    "the modules are installed": (MODULE, NEW, "post"),
    "before the old modules are removed": (MODULE, OLD, "preun"),
    "the old modules are removed": (MODULE, OLD, "postun"),
    "the old library is removed": (LIBRARY, OLD, "postun"),
}
# The program and the arguments at which the run is killed. systemd starts the clients with the host, and the role then
# deletes its record of the drain.
COMMANDS = {
    "before the download": ("dnf", "--downloadonly"),
    "before the transaction": ("dnf", "--comment=openfleet-nvidia-driver"),
    "before the packages are locked": ("dnf", "versionlock add"),
    "before the reboot": ("systemd-run", "systemctl reboot"),
    "before clients are restored": ("systemctl", " -- client", NEW),
}
# The loaded module and the client's state when the run is killed.
REBOOT = {"before the reboot": (OLD, "inactive"), "before clients are restored": (NEW, "active")}
POINTS = {name: kill_in(*point) for name, point in SCRIPTLETS.items()}
POINTS.update((name, kill_before(*point)) for name, point in COMMANDS.items())
USUAL = ("the modules are installed",)
# Both kinds of kills delete their file. If a file remained, it would kill a later run.
REACHED = (
    "for file in /run/scriptlet /usr/sbin/dnf /usr/sbin/systemd-run /usr/sbin/systemctl; do "
    '[ ! -e $file ] || { rm $file; echo "the run did not reach $file" >&2; exit 1; }; done; '
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in USUAL else [pytest.mark.thorough]) for name in POINTS]
)
def test_the_next_run_completes_an_upgrade_that_was_killed(lab_host, name):
    before, killed, repaired = play(
        HOST,
        Ask({"nvidia_driver_version": OLD}, then=LOOK),
        Ask({"nvidia_driver_version": NEW}, first=POINTS[name], then=REACHED + LOOK, fails=True),
        Ask({"nvidia_driver_version": NEW}, then=fail_if(RECORDS) + LOOK),
    )
    is_whole(State.read(before.seen), OLD)
    torn = State.read(killed.seen)
    if name in SCRIPTLETS:
        assert torn.broken or torn.packages != State.read(before.seen).packages
        assert repaired.planned[0].startswith("complete the interrupted change from %s to %s" % (OLD, NEW))
        assert repaired.done[0] == repaired.planned[0]
    if name in REBOOT:
        assert (torn.packages[MODULE], torn.loaded, torn.active.split()[-1]) == (NEW + "-1.el9", *REBOOT[name])
    is_whole(State.read(repaired.seen), NEW)


@pytest.mark.thorough
def test_a_repair_that_is_asked_for_the_old_version_ends_in_it(lab_host):
    """Restore the old version if it is requested.

    This must work even if the interrupted version is no longer available.
    """
    gone = "mkdir /srv/gone; mv /srv/mirror/cuda/repos/rhel9/x86_64/*-%s-*.rpm /srv/gone; " % NEW
    _before, killed, repaired = play(
        HOST,
        Ask({"nvidia_driver_version": OLD}),
        Ask({"nvidia_driver_version": NEW}, first=kill_in(MODULE, NEW, "post"), then=gone + LOOK, fails=True),
        Ask({"nvidia_driver_version": OLD}, then="mv /srv/gone/* /srv/mirror/cuda/repos/rhel9/x86_64/; " + LOOK),
    )
    assert State.read(killed.seen).broken
    is_whole(State.read(repaired.seen), OLD)
