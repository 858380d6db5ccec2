# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop idle units, unless they become active at the last moment."""

from __future__ import annotations

import time

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.drain.units import Unit
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Gpu, Holder, Host, Mig, Telemetry, Work
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim import stop
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim.stop import Policy, Tools, reclaim

UNIT = {"kind": "unit", "name": "x.service", "runtime": "", "gpus": ["GPU-0"]}
CONTAINER = {"kind": "container", "name": "notebook", "runtime": "podman", "gpus": ["GPU-0"]}
IN_MIG = {**UNIT, "gpus": ["GPU-0 1"]}


def host(used=0, mig=False, count=2):
    telemetry = None if used is None else Telemetry(gpu_utilization_percent=used)
    mode = Mig(True, mig, mig)
    gpus = [Gpu(n, "GPU-%d" % n, "NVIDIA H100", "", 80 << 30, mode, telemetry=telemetry) for n in range(count)]
    return Host("580", "13", "13.0", True, tuple(gpus))


def held(name="x.service", gpu="GPU-0", instance=None, **more):
    return Holder(gpu, instance, more.pop("kind", "process"), "pid 7 (%s)" % name, unit_or_container=name, **more)


def unit(name, active="active", triggered_by=(), bus_name=""):
    return Unit(name, "loaded", active, triggered_by, bus_name=bus_name)


class Stops:
    """Replace systemd and the container runtimes, and record what they should stop."""

    def __init__(self, *along, active="active", problem="", bus_name=""):
        self.along, self.active, self.problem, self.bus_name = along, active, problem, bus_name
        self.names = []

    def closure(self, name):
        sockets = tuple(one.name for one in self.along if one.name.endswith(".socket"))
        asked = unit(name, self.active, sockets, self.bus_name)
        return asked, [*self.along, asked]

    def stop(self, item):
        if self.problem:
            raise FleetError(item["name"], self.problem)
        self.names.append(item["name"])


#: The measured values of an idle place, on hardware that measures all of them, such as GPM on Hopper.
REST = {"kernels_ratio": 0.0, "engines_ratio": 0.0, "bandwidth_ratio": 0.0, "pcie_bytes_per_second": 2e4, "watts": 75.0}


def work_of(where, seconds, **values):
    """Return the measured work of a place. NVML reports no utilization of an instance."""
    used = values.pop("used", None if where[1] else 0)
    return Work(int(where[0][-1]), max(seconds, 0.1), used, **{**REST, **values})


def at_rest(**values):
    """Return a measurement in which GPUs are idle, except for these values."""

    def measure(places, seconds):
        time.sleep(seconds)
        return {where: work_of(where, seconds, **values) for where in places}

    return measure


def stop_idle(items, look, stops, measure=None, **policy):
    """Stop units without a notice. Other tests cover the steps before the stop."""
    return reclaim(items, Tools(look, measure or at_rest(), stop=stops.stop, closure=stops.closure), Policy(**policy))


def run(items, seen, holders, stops=None, dry=False):
    stops = stops or Stops()
    done = stop_idle(items, lambda: (seen, holders), stops, dry=dry)
    return done, stops.names


@pytest.mark.parametrize(
    ("item", "seen", "holder"),
    [
        (UNIT, host(), held()),
        (CONTAINER, host(), held("podman container notebook", kind="container")),
        # For a GPU in MIG mode, NVML reports no utilization.
        (IN_MIG, host(None, mig=True), held(instance=1)),
    ],
)
def test_idle_holder_is_stopped(item, seen, holder):
    done, names = run([item], seen, [holder])
    assert names == [item["name"]] and done["spared"] == []
    (row,) = done["stopped"]
    assert row["gpus"] == item["gpus"] and row["holders"] == [str(holder)]


def test_dry_run_lists_units_without_stopping():
    done, names = run([UNIT], host(), [held()], dry=True)
    assert names == [] and [row["name"] for row in done["stopped"]] == ["x.service"]


@pytest.mark.parametrize(
    ("item", "seen", "holders", "why"),
    [
        (UNIT, host(), [], "no longer holds a GPU"),
        (UNIT, host(), [held("y.service")], "no longer holds a GPU"),
        ({**UNIT, "name": "polkit.service"}, host(), [held("polkit.service")], "the host needs it"),
        (UNIT, host(1), [held()], "gpu 0 is in use now (1 %)"),
        (UNIT, host(None), [held()], "the utilization of gpu 0 is not known"),
        (UNIT, host(), [held(), held(gpu="GPU-1")], "another GPU too: GPU-1"),
        (UNIT, host(None, mig=True), [held(instance=1)], "another GPU too: GPU-0 instance 1"),
        (IN_MIG, host(None, mig=True), [held(instance=1), held(instance=2)], "another GPU too: GPU-0 instance 2"),
        (UNIT, host(), [held(job="17")], "a scheduler started it"),
        (UNIT, host(), [held(), held(None, kind="unknown")], "the holders of gpu 0 are not known"),
        ({**CONTAINER, "runtime": "docker"}, host(), [held("podman container notebook")], "no longer holds a GPU"),
    ],
)
def test_uncertain_units_are_spared(item, seen, holders, why):
    done, names = run([item], seen, holders)
    assert names == [] and done["stopped"] == [] and why in done["spared"][0]["why"]


@pytest.mark.parametrize("elsewhere", ["GPU-0", "GPU-1"])
def test_bare_handle_does_not_spare_a_unit(elsewhere):
    """A bare handle is an open device node without a CUDA context.

    Here another user's process in the service opened the node a minute ago.
    """
    old = held(pid=6, started_seconds=0.0)
    bare = held(gpu=elsewhere, kind="device_handle", pid=7, started_seconds=time.time() - 60)
    for mine in ([old, bare], [bare, old]):
        stops = Stops()
        stop_idle([UNIT], lambda mine=mine: (host(), mine), stops, grace_seconds=48 * 3600.0)
        assert stops.names == ["x.service"]
    # If the unit holds nothing but the bare handle, a user may have passed the open file to it.
    done, names = run([{**UNIT, "gpus": [elsewhere]}], host(), [bare])
    assert names == [] and "a user may have passed it the open file" in done["spared"][0]["why"]
    done, names = run([UNIT], host(), [held(kind="device_handle"), held(gpu="GPU-1", kind="device_handle")])
    assert names == [] and "another GPU too: GPU-1" in done["spared"][0]["why"]


@pytest.mark.parametrize(
    ("stops", "why"),
    [
        (Stops(unit("y.service")), "this would also stop y.service"),
        (Stops(active="inactive"), "it is not running"),
        (Stops(bus_name="org.example.Vendor"), "it is on D-Bus (org.example.Vendor)"),
    ],
)
def test_unit_whose_stop_affects_others_is_spared(stops, why):
    done, names = run([UNIT], host(), [held()], stops)
    assert names == [] and why in done["spared"][0]["why"]


def test_its_socket_and_inactive_units_can_stop_with_it():
    _done, names = run([UNIT], host(), [held()], Stops(unit("x.socket"), unit("y.service", "inactive")))
    assert names == ["x.service"]


def test_other_units_than_services_are_spared():
    done, names = run([{**UNIT, "name": "x.timer"}], host(), [held("x.timer")])
    assert names == [] and "not a service" in done["spared"][0]["why"]


def test_lease_is_stopped():
    lease = "openfleet-gpu-lease-7.scope"
    done, names = run([{**UNIT, "name": lease}], host(), [held(lease)])
    assert names == [lease] and not done["spared"]


@pytest.mark.parametrize("name", ["openfleet-gpu-lease-7.slice", "openfleet-gpu-lease-x.scope", "x.scope"])
def test_unit_that_is_no_lease_is_spared(name):
    done, names = run([{**UNIT, "name": name}], host(), [held(name)])
    assert names == [] and done["spared"]


def test_failed_stop_is_reported_and_others_are_stopped():
    stops = Stops(problem="it hangs")
    done, _names = run([UNIT, UNIT], host(), [held()], stops)
    assert len(done["spared"]) == 2 and "it hangs" in done["spared"][0]["why"]


@pytest.mark.parametrize(
    ("age_hours", "why"),
    [
        (49, None),
        (47, "pid 7 started 47.0 h ago; protected for 48 h"),
        (None, "the start time of pid 7 is not known"),
    ],
)
@pytest.mark.parametrize(("item", "instance"), [(UNIT, None), (IN_MIG, 1)])
def test_recently_started_units_are_spared(item, instance, age_hours, why):
    began = None if age_hours is None else time.time() - age_hours * 3600
    old = held(instance=instance, pid=6, started_seconds=0.0)
    mine = [old, held(instance=instance, pid=7, started_seconds=began)]
    seen = host(None if instance else 0, mig=bool(instance))
    stops = Stops()
    done = stop_idle([item], lambda: (seen, mine), stops, grace_seconds=48 * 3600.0)
    assert [row["why"] for row in done["spared"]] == ([why] if why else [])
    assert stops.names == ([] if why else ["x.service"])


def test_unreadable_unit_is_reported_and_others_are_stopped():
    def look():
        if not looks:
            looks.append(1)
            raise FleetError("NVML", "it does not answer")
        return host(), [held()]

    looks, stops = [], Stops()
    done = stop_idle([UNIT, UNIT], look, stops)
    assert stops.names == ["x.service"] and "it does not answer" in done["spared"][0]["why"]


def test_unit_unknown_to_systemd_is_reported_and_others_are_stopped():
    def closure(name):
        raise FleetError(name, "systemctl does not answer")

    stops = Stops()
    items = [UNIT, CONTAINER]
    holders = [held(), held("podman container notebook", kind="container")]
    stops.closure = closure
    done = stop_idle(items, lambda: (host(), holders), stops)
    assert stops.names == ["notebook"] and "does not answer" in done["spared"][0]["why"]


@pytest.mark.parametrize("name", ["x", "x.service"])
def test_jupyter_server_is_matched_with_or_without_the_suffix(name, monkeypatch):
    monkeypatch.setattr(stop.jupyter, "shut_down", lambda server, quiet, dry: ["kernel 1"])
    monkeypatch.setattr(stop, "UserOfUnitOwner", lambda name: None)
    stops = Stops()
    servers = [{"name": name, "url": "http://127.0.0.1:9"}]
    done = stop_idle([UNIT], lambda: (host(), [held()]), stops, jupyter=servers)
    assert stops.names == [] and done["stopped"][0]["kernels"] == ["kernel 1"]


def test_each_unit_is_checked_right_before_its_stop():
    idle, both = (host(), [held(), held("z.service")]), (host(5), [held("z.service")])
    looks = iter([idle, idle, idle, both])
    stops = Stops()
    done = stop_idle([UNIT, {**UNIT, "name": "z.service"}], lambda: next(looks), stops)
    assert stops.names == ["x.service"] and "is in use now" in done["spared"][0]["why"]
