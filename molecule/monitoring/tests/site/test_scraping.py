# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that only Prometheus can scrape, over TLS and with the password."""

from __future__ import annotations

import base64
import re
import shlex
from pathlib import Path

import pytest
from watched_fleet import eventually

from tests.lab.fleet import play_and_read

INVENTORY = Path(__file__).resolve().parents[2] / "inventory"
CA = "/etc/prometheus/openfleet-gpu/openfleet-gpu-ca.pem"
PASSWORD = "a password of the lab"
EXPORTERS = {"hopper:9400": "127.0.0.11", "ada:9400": "127.0.0.12"}
# A program that prints the status of a response. If there is no response, it prints the reason.
FETCH = (
    """
import ssl, sys, urllib.error, urllib.request
url, authorization = sys.argv[1:]
request = urllib.request.Request(url, headers={"Authorization": authorization} if authorization else {})
context = ssl.create_default_context(cafile="%s") if url.startswith("https") else None
try:
    answer = urllib.request.urlopen(request, timeout=30, context=context)
    print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print("none", error)
except Exception as error:
    print("none", type(error).__name__)
"""
    % CA
)


@pytest.fixture
def fetch(monitor):
    """Return a function that reads an exporter's page from the monitoring host.

    The function returns (status or "none", text).
    """

    def get(url, authorization=""):
        words = " ".join(shlex.quote(word) for word in (FETCH, url, authorization))
        status, _, text = monitor.host.check_output(f"python3 -c {words}").partition(" ")
        return status, text

    return get


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.thorough
def test_a_second_run_changes_nothing():
    assert play_and_read("site.yml", "monitoring-second.json", "--inventory", str(INVENTORY)).changes == ()


def test_every_exporter_is_scraped(monitor):
    def of_exporters():
        return {name: health for name, health in monitor.prometheus.targets().items() if name in EXPORTERS}

    eventually(of_exporters, lambda seen: seen == dict.fromkeys(EXPORTERS, "up"), "every exporter up")


def test_only_exporters_and_prometheus_are_targets(monitor):
    assert set(monitor.prometheus.targets()) - set(EXPORTERS) <= {"127.0.0.1:9090"}


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_scrape_with_missing_or_wrong_password_is_refused(fetch, exporter):
    url = f"https://{exporter}/metrics"
    wrong = [basic("prometheus", "another"), basic("prometheus", ""), basic("", PASSWORD), basic("root", PASSWORD)]
    for authorization in ["", *wrong, f"Bearer {PASSWORD}"]:
        status, text = fetch(url, authorization)
        assert status == "401", authorization
        assert "gpu" not in text.lower()
    status, text = fetch(url, basic("prometheus", PASSWORD))
    assert status == "200" and "openfleet_gpu_info{" in text


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_plain_http_is_refused(fetch, exporter):
    status, text = fetch(f"http://{exporter}/metrics", basic("prometheus", PASSWORD))
    assert status != "200" and "gpu" not in text.lower()


def test_nothing_listens_on_all_addresses(monitor):
    # All hosts share one interface, so this command sees the listeners of all of them.
    listening = re.findall(r"^\S+\s+\d+\s+\d+\s+(\S+):(\d+)\s", monitor.host.check_output("ss -Hlnt"), re.MULTILINE)
    assert {"9090", "9093", "9099", "9400"} == {port for _, port in listening}
    assert sorted(address for address, port in listening if port == "9400") == sorted(EXPORTERS.values())
    assert {address for address, port in listening if port != "9400"} == {"127.0.0.1"}


def test_gpu_host_has_only_the_hash_of_the_password(hopper):
    assert hopper.run("grep -rl --exclude-dir=proc %s /etc /usr/lib/openfleet-gpu /opt /var/lib", PASSWORD).stdout == ""


def test_only_prometheus_may_read_the_password(monitor):
    secrets = monitor.host.check_output("grep -rl %s /etc", PASSWORD).split()
    assert secrets
    for path in secrets:
        file = monitor.host.file(path)
        assert (file.user, file.group, file.mode) == ("root", "prometheus", 0o640), path
