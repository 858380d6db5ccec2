# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop and start units of a real systemd with the module."""

from __future__ import annotations

import pytest
from drained_host import RECORD, RUNNING

ALL = set(RUNNING)


def test_running_services_stop_in_order_and_start_in_reverse(host):
    services = ["lab-a", "lab-off.service", "lab-tick.service", "lab-nowhere", "lab-lame"]
    off = {"lab-a.service", "lab-tick.timer", "lab-lame.service"}
    since = host.ask("journalctl --sync; date +%s.%N")
    assert host.drain(services=services)["changed"]
    assert host.active() == ALL - off
    assert host.resume()["changed"]
    assert host.active() == ALL
    log = host.ask(
        f"journalctl --sync; journalctl --since=@{since} --output=cat _PID=1 | grep -E '^(Stopped|Started) lab-(a|lame)'"
    ).split("\n")
    assert [line.rstrip(".").split()[:2] for line in log] == [
        ["Stopped", "lab-a.service"],
        ["Stopped", "lab-lame.service"],
        ["Started", "lab-lame.service"],
        ["Started", "lab-a.service"],
    ]
    assert not host.host.file(RECORD).exists


def test_dependent_units_are_started_again(host):
    assert host.drain(services=["lab-b"])["changed"]
    assert host.active() == ALL - {"lab-b.service", "lab-exporter.service"}
    assert not host.drain(services=["lab-b"])["changed"]
    assert host.resume()["changed"]
    assert host.active() == ALL
    assert not host.resume()["changed"]


@pytest.mark.parametrize("ran_before", [False, True])
def test_socket_does_not_start_its_service_early(host, ran_before):
    before = ALL | ({"lab-inetd.service"} if ran_before else set())
    if ran_before:
        host.ask("systemctl start lab-inetd.service")
    assert host.drain(services=["lab-inetd"])["changed"]
    assert host.active() == ALL - {"lab-inetd.socket"}
    assert host.resume()["changed"]
    assert host.active() == before


def test_dry_run_lists_services_without_stopping(host):
    dry = host.drain(check=True, services=["lab-b", "lab-off"])
    assert dry["changed"]
    assert dry["diff"] == {
        "before": "lab-exporter.service: active\nlab-b.service: active\n",
        "after": "lab-exporter.service: inactive\nlab-b.service: inactive\n",
    }
    assert host.active() == ALL
    assert not host.host.file(RECORD).exists
    assert host.drain(services=["lab-b"])["changed"]
    dry = host.resume(check=True)
    assert dry["changed"]
    assert dry["diff"] == {
        "before": "lab-b.service: inactive\nlab-exporter.service: inactive\n",
        "after": "lab-b.service: active\nlab-exporter.service: active\n",
    }
    assert "lab-b.service" not in host.active()


def test_slowly_stopping_unit_is_stopped(host):
    assert host.drain(services=["lab-slow", "lab-a"])["changed"]
    assert host.active() == ALL - {"lab-slow.service", "lab-a.service"}
    assert host.resume()["changed"]
    assert host.active() == ALL


def test_failed_stop_restores_earlier_services(host):
    said = host.refused("drained", services=["lab-a", "lab-firm"])
    assert "unit lab-firm.service: it cannot be stopped:" in said
    assert "The drain was rolled back." in said
    assert host.active() == ALL
    assert not host.host.file(RECORD).exists


def test_service_that_fails_to_start_is_named_and_stays_recorded(host):
    assert host.drain(services=["lab-a", "lab-lame"], commands_after=["touch /run/lab-after"])["changed"]
    host.ask("touch /run/lab-lame")
    said = host.refused("resumed")
    assert "unit lab-lame.service: it does not start:" in said
    assert "(by hand: systemctl start lab-lame.service)" in said
    # All units except the failing one are running again. The commands after the drain wait.
    assert host.active() == ALL - {"lab-lame.service"}
    assert not host.host.file("/run/lab-after").exists
    host.ask("rm /run/lab-lame; systemctl start lab-lame")
    # After a manual start of the failing unit, the module starts nothing more and runs the commands that waited.
    assert host.resume()["changed"]
    assert host.host.file("/run/lab-after").exists
    assert not host.resume()["changed"]


def test_failed_drain_with_failed_rollback_reports_both(host):
    host.ask("touch /run/lab-lame")
    said = host.refused("drained", services=["lab-lame", "lab-firm"])
    assert "lab-firm.service: it cannot be stopped" in said
    assert "not everything could be restored: unit lab-lame.service: it does not start" in said
    assert "(by hand: systemctl start lab-lame.service)" in said
    assert host.host.file(RECORD).exists
    host.ask("rm /run/lab-lame")
    assert host.resume()["changed"]
    assert host.active() == ALL


def test_removed_unit_is_not_restored(host):
    assert host.drain(services=["lab-a", "lab-b"])["changed"]
    host.ask("mv /etc/systemd/system/lab-a.service /run/lab-a.kept; systemctl daemon-reload")
    try:
        assert host.resume()["changed"]
        assert host.active() == ALL - {"lab-a.service"}
        assert not host.host.file(RECORD).exists
    finally:
        host.ask("mv /run/lab-a.kept /etc/systemd/system/lab-a.service; systemctl daemon-reload")


def test_invalid_unit_is_refused_before_any_change(host):
    said = host.refused("drained", services=["lab-a", "multi-user.target"])
    assert "unit multi-user.target: it is a target: starting it again would start more than was stopped" in said
    assert host.active() == ALL
