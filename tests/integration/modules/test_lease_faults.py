# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let calls for leases fail or die at each step, and check the recovery.

The rules: a granted lease keeps its instance or quota, a refused lease leaves nothing behind, fixed instances never
change, and a later request succeeds.
"""

from __future__ import annotations

import errno
import os
import random
import signal

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import Shape
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.session import Session
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.vendor import NvidiaVendor
from tests.integration.lease_fleet import GIB, Killed, LeaseFleet, Refused, mig, vgpu
from tests.thorough import THOROUGH

LAYOUT = [mig([0], "2g.20gb"), vgpu([1], {"name": "fixed", "memory": "8GiB", "sm_percent": 10})]
SMALL, LARGE, QUOTA = Shape(profile="1g.10gb"), Shape(profile="3g.40gb"), Shape(8 * GIB, 20)
#: Functions of `os` that change files.
CHANGES = ("fsync", "unlink", "replace", "mkdir", "rmdir")


@pytest.fixture
def fleet(host, monkeypatch):
    host.create([{"model": "H100-80GB", "count": 2}])
    fleet = LeaseFleet(host, monkeypatch)
    assert not fleet.apply(LAYOUT).get("failed")
    return fleet


class FileFault:
    """A fault in a file's nth change.

    The disk is full, or the process is killed before or after the change.
    """

    def __init__(self, nth: int, action: str) -> None:
        self.nth, self.action, self.count = nth, action, 0

    def install(self) -> None:
        for name in CHANGES:
            setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, function):
        def call(*args, **named):
            self.count += 1
            here = self.count == self.nth
            if here and self.action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if here and self.action == "full" and function.__name__ in ("fsync", "mkdir", "replace"):
                raise OSError(errno.ENOSPC, "No space left on device")
            done = function(*args, **named)
            if here and self.action == "kill-after":
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return call


def attempt(fleet, run, fault=None, count=False):
    """Run the lease host's call in a fork, and return its result.

    Return None after an error or a kill.
    """

    def forked():
        if fault is not None:
            fault.install()
        done = run()
        return fault.count if count else done

    try:
        return fleet.fork(forked)
    except Refused as error:
        assert error.kind not in ("AssertionError", "TypeError", "KeyError", "AttributeError"), error
        return None
    except Killed:
        return None


def take(fleet, number, shape):
    return fleet.lease_host().take(fleet.find(number, shape))


def check(fleet, living, grants):
    """Recover, and check this file's rules."""
    fleet.control.clear_failures()
    fleet.recover(*living)
    for number in living:
        assert fleet.grant(number) == grants[number]
    leases = {text for text in fleet.records().values() if text is not None}
    leases |= {name.replace("lease-", "lease ") + " of root" for name in fleet.tenants() if name != "fixed"}
    assert leases == {"lease %d of root" % number for number in living}
    assert not (fleet.host.folder / "state.d" / "journal.json").exists()
    # An instance without a record would be drift.
    after = fleet.apply(LAYOUT)
    assert not after.get("failed") and not after["changed"], after
    fixed = [place for place in fleet.instances()[0] if place not in fleet.records()]
    assert [profile for profile, _start in fixed] == ["2g.20gb"]
    assert "fixed" in fleet.tenants()


#: The calls under test.
CASES = {
    "take an instance": lambda fleet: take(fleet, 3, SMALL),
    "take the place of idle instances": lambda fleet: take(fleet, 3, LARGE),
    "take a quota": lambda fleet: take(fleet, 3, QUOTA),
    "give back an instance": lambda fleet: fleet.lease_host().give_back(1),
    "give back a quota": lambda fleet: fleet.lease_host().give_back(2),
    "change a quota": lambda fleet: fleet.lease_host().resize(2, Shape(16 * GIB, 30)),
}


def prepare(fleet):
    """Take an instance and a quota beside idle instances, and return their grants."""
    grants = {1: fleet.take(1, SMALL), 2: fleet.take(2, QUOTA)}
    for number in (11, 12, 13):
        fleet.take(number, SMALL)
    for number in (11, 12, 13):
        fleet.give_back(number)
    return grants


def judge(fleet, case, done, grants):
    """Check the state after the call `done`, which is None if it failed."""
    living = dict(grants)
    if case.startswith("take") and done is not None:
        living[3] = done
    elif case == "give back an instance":
        # The unit ended before the call, so the lease has ended even if the call failed.
        del living[1]
    elif case == "give back a quota":
        del living[2]
    check(fleet, sorted(living), living)
    if 3 in living:
        fleet.give_back(3)
    again = fleet.take(4, SMALL)
    assert len(again["mig_uuids"]) == 1
    fleet.give_back(4)


@pytest.mark.parametrize("case", CASES)
def test_lease_survives_a_fault_of_any_file(fleet, case):
    grants = prepare(fleet)
    saved = Saved(fleet)
    changes = attempt(fleet, lambda: CASES[case](fleet), FileFault(0, ""), count=True)
    assert changes
    faults = [(nth, action) for nth in range(1, changes + 1) for action in ("kill", "kill-after", "full")]
    for nth, action in faults if THOROUGH else random.Random(len(faults)).sample(faults, min(6, len(faults))):
        saved.restore()
        done = attempt(fleet, lambda: CASES[case](fleet), FileFault(nth, action))
        judge(fleet, case, done, grants)


@pytest.mark.parametrize("dies", ["run", "child"])
@pytest.mark.parametrize("case", [case for case in CASES if "instance" in case])
def test_lease_survives_a_fault_of_any_nvml_call(fleet, case, dies):
    """Let NVML calls fail, or kill the run or its child that calls NVML."""
    grants = prepare(fleet)
    saved = Saved(fleet)

    def run():
        if dies == "run":
            Session.private = True
            NvidiaVendor.open = lambda self: Session()
        return CASES[case](fleet)

    fleet.control.clear_calls()
    attempt(fleet, run)
    calls = sorted(fleet.control.dump()["calls"].items())
    changes = [each for each in calls if "Create" in each[0] or "Destroy" in each[0]]
    reads = [each for each in calls if each not in changes]
    faults = {
        group: [
            (call, nth, action)
            for call, count in chosen
            for nth in range(1, count + 1)
            for action in ("UNKNOWN", "kill", "kill-inside", "kill-after")
        ]
        for group, chosen in (("changes", changes), ("reads", reads))
    }
    choose = random.Random(len(calls))
    chosen = [fault for some in faults.values() for fault in choose.sample(some, min(4, len(some)))]
    for call, nth, action in [*faults["changes"], *faults["reads"]] if THOROUGH else chosen:
        saved.restore()
        fleet.control.fail(call, nth, action)
        judge(fleet, case, attempt(fleet, run), grants)


class Saved:
    """The simulated GPUs and all of a host's files, saved once."""

    def __init__(self, fleet) -> None:
        self._fleet = fleet
        self._gpus = (fleet.host.folder / "state").read_bytes()
        fleet.host.run(["cp", "-a", str(fleet.host.folder / "state.d"), str(fleet.host.folder / "saved.d")])
        fleet.host.run(["cp", "-a", str(fleet.root), str(fleet.host.folder / "saved.root")])

    def restore(self) -> None:
        # Write in place, because this process and its forks have mapped the file.
        with (self._fleet.host.folder / "state").open("r+b") as file:
            file.write(self._gpus)
        for name, saved in (("state.d", "saved.d"), ("root", "saved.root")):
            self._fleet.host.run(["rm", "-rf", str(self._fleet.host.folder / name)])
            self._fleet.host.run(
                ["cp", "-a", str(self._fleet.host.folder / saved), str(self._fleet.host.folder / name)]
            )
