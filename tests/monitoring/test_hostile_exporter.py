# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a hostile exporter cannot harm other hosts.

The role's scrape configuration runs on a real Prometheus. promtool evaluates the rules.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import threading
import time

import pytest
import yaml

from tests.monitoring.prometheus_process import running
from tests.monitoring.role_site import NOBODY_ASKED, Site
from tests.monitoring.rule_files import FILES, as_series, input_series, promtool_test

GPU = 'uuid="{0}",gpu_uuid="{0}",gpu_index="0",model="m"'
GOOD = 'openfleet_gpu_info{%s} 1\nopenfleet_gpu_lost{%s} 1\nnode_cpu_info{vendor="v"} 1\n' % ((GPU.format("G"),) * 2)
OWN = (
    "openfleet_gpu_info{%s%s} 1",
    'openfleet_gpu_job{%s%s,hpc_job="1"} 1',
    'openfleet_gpu_xid_errors_5m{%s%s,xid="79"} 1',
    'openfleet_gpu_ecc_errors_total{%s%s,type="corrected"} 1',
    "openfleet_layout_check_success{%s%s} 1",
)
#: Each series occurs twice with different labels. If a rule replaced the label, they would become one series. The text
#: also has names of recorded series.
BAD = "".join(
    line % (GPU.format("B"), ',%s="%s"' % (label, value)) + "\n"
    for line in OWN
    for label in ("class", "kind", "series", "vendor", "workload")
    for value in "ab"
) + 'gpu:price_per_hour{%s} +Inf\ngpu_map:dcgm_known{UUID="B"} 1\n' % GPU.format("B")
#: Maximum number of series in a response.
LIMIT = 200
#: Texts that receivers of alerts would show as markup or links, or would not show at all. The other texts are real
#: names of GPUs.
MARKUP = (
    "<!channel>",
    "<https://b.example|sign in>",
    "see https://b.example",
    "H100\\n",
    "\u202e001H",
    "H\u200b100",
    "H\u2028",
    "\x1b[2J",
)
MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB MIG 1g.10gb+me", "AMD Instinct™ (MI300X), 192 GB; 1/8")


class Exporter(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.headers.get("Authorization"))
        self.send_response(200)
        body = self.server.text.encode()
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def exporter(address: str, text: str, handler=Exporter):
    """Run an exporter that serves the text, and yield its address and port."""
    host, port = address.split(":")
    server = http.server.ThreadingHTTPServer((host, int(port)), handler)
    server.text, server.asked = text, []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the role's files for two hosts that have the same password."""
    place = tmp_path_factory.mktemp("site")
    (place / "grafana" / "dashboards").mkdir(parents=True)
    site = Site(place, "http://127.0.0.1:9")
    site.run(
        **NOBODY_ASKED,
        dcgm_exporter_basic_auth_users={"prom": "pass"},
        gpu_monitoring_group=os.getgid(),
        gpu_monitoring_scrape_interval="1s",
        gpu_monitoring_scrape_timeout="1s",
        gpu_monitoring_scrape_sample_limit=LIMIT,
    )
    (targets,) = (site.directory / "targets").glob("*.json")
    site.addresses = {each["labels"]["host"]: each["targets"][0] for each in json.loads(targets.read_text())}
    written = yaml.safe_load((site.directory / "openfleet-gpu-scrape.yml").read_text())
    rules = [str(FILES / name) for name in ("rules/embedded.yml", "rules/host.yml", "alerts/xid.yml")]
    site.config = place / "prometheus.yml"
    site.config.write_text(yaml.safe_dump({"global": {"evaluation_interval": "1s"}, "rule_files": rules, **written}))
    return site


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)


def test_what_one_exporter_says_stops_no_rule_and_stands_for_none(site, tmp_path):
    good, bad = (site.addresses[host] for host in ("gpu-1", "gpu-2"))
    with exporter(good, GOOD), exporter(bad, BAD), running(tmp_path, site.config) as prometheus:

        def hosts(query):
            return {each["metric"].get("host") for each in prometheus.get("query", query=query)["result"]}

        def evaluated():
            return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

        until(lambda: hosts("gpu:info") == {"gpu-1", "gpu-2"} == hosts("up == 1") and hosts("gpu:lost"))
        assert hosts("gpu:info") == {"gpu-1", "gpu-2"}
        assert [rule["lastError"] for rule in evaluated() if rule.get("lastError")] == []
        assert hosts("gpu:lost") == {"gpu-1"}
        assert not hosts('{__name__=~"gpu:price_per_hour|gpu_map:dcgm_known"}')
        # The rules add this label to the collection's own series. Other exporters may use it for other purposes.
        assert hosts('node_cpu_info{vendor="v"}') == {"gpu-1"}


def test_an_answer_of_too_many_series_is_refused_as_a_whole(site, tmp_path):
    good, bad = (site.addresses[host] for host in ("gpu-1", "gpu-2"))
    many = "".join("a_%d 1\n" % number for number in range(LIMIT + 1))
    with exporter(good, GOOD), exporter(bad, many), running(tmp_path, site.config) as prometheus:

        def up(value):
            return {each["metric"]["host"] for each in prometheus.get("query", query="up == %d" % value)["result"]}

        until(lambda: up(0) and up(1))
        assert (up(1), up(0)) == ({"gpu-1"}, {"gpu-2"})
        assert prometheus.get("query", query='{__name__=~"a_.*"}')["result"] == []


def test_no_label_of_an_exporter_is_markup_in_an_alert(site, tmp_path):
    names = ("model", "modelName", "gpu_index", "tenant", "xid")
    texts = ['a{%s="%s"} 1\n' % (name, value) for name in names for value in (*MARKUP, *MODELS)]
    good, bad = (site.addresses[host] for host in ("gpu-1", "gpu-2"))
    # Labels that no alert shows stay unchanged.
    with exporter(good, 'b{path="<x>"} 1\n'), exporter(bad, "".join(texts)), running(
        tmp_path, site.config
    ) as prometheus:
        until(lambda: prometheus.get("query", query="b")["result"] and prometheus.get("query", query="a")["result"])
        assert len(prometheus.get("query", query="b")["result"]) == 1
        found = [each["metric"] for each in prometheus.get("query", query="a")["result"]]
        assert {value for one in found for name, value in one.items() if name in names} == set(MODELS)
        assert len(found) == len(names) * len(MODELS)


def test_a_label_kind_of_raw_series_fails_no_roll_up(tmp_path):
    ratios = ("busy", "compute_active", "tensor_active", "memory_bandwidth_active", "codec_busy")
    names = [f"gpu:{name}_ratio" for name in ratios]
    names += [
        f"gpu:{name}" for name in ("pcie_bytes_per_second", "nvlink_bytes_per_second", "process_cpu_seconds_total")
    ]
    lines = {"bad": "ab", "good": ("",)}
    series = [
        {"series": as_series(name, {"host": host, "gpu_uuid": host, "kind": kind}), "values": "0.5x20"}
        for name in names
        for host, kinds in lines.items()
        for kind in kinds
    ]
    hosts = [{"labels": f'{{host="{host}"}}', "value": 1} for host in lines]
    problems = promtool_test(
        tmp_path,
        [FILES / "rollups.yml"],
        [
            {
                "input_series": series,
                "promql_expr_test": [
                    {"expr": f"group by (host) ({record})", "eval_time": "15m", "exp_samples": hosts}
                    for record in ("gpu:device_activity_ratio:max5m", "gpu:activity_ratio:max5m")
                ],
            }
        ],
    )
    assert not problems, problems


class Elsewhere(Exporter):
    """Redirect every request to the address in the text."""

    def do_GET(self):
        self.server.asked.append(self.headers.get("Authorization"))
        self.send_response(302)
        self.send_header("Location", self.server.text)
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_the_password_goes_nowhere_else(site, tmp_path):
    """Do not follow redirections of an exporter.

    Otherwise Prometheus would send the password to the host that the redirection names.
    """
    with contextlib.ExitStack() as opened:
        thief = opened.enter_context(exporter("127.0.0.1:0", GOOD))
        there = f"http://127.0.0.1:{thief.server_port}/"
        redirecting = opened.enter_context(exporter(site.addresses["gpu-1"], there, Elsewhere))
        opened.enter_context(running(tmp_path, site.config))
        until(lambda: len(redirecting.asked) > 1 or thief.asked)
        assert redirecting.asked[0].startswith("Basic ")
        assert thief.asked == []


def processes(place, scrapes):
    """Test a GPU with contradictory process counts. Return promtool's error.

    The host a reports 2 processes on its GPU u. The exporter of each scrape reports 0.
    """
    said = 'openfleet_holders{gpu_uuid="u",kind="process"} 2\n'
    host = [({"job": "gpu_host", "instance": "a:1", "host": "a"}, [said])]
    others = [({"job": "gpu_exporter", **scrape}, ['openfleet_gpu_processes{gpu_uuid="u"} 0\n']) for scrape in scrapes]
    return promtool_test(
        place,
        [FILES / "rules" / "host.yml"],
        [
            {
                "input_series": input_series(host + others),
                "promql_expr_test": [
                    {
                        "expr": "sum by (host) (gpu:processes)",
                        "eval_time": "0s",
                        "exp_samples": [{"labels": '{host="a"}', "value": 2}],
                    }
                ],
            }
        ],
    )


def test_processes_of_a_host_are_not_hidden_by_another_that_has_its_gpus_uuid(tmp_path):
    problems = processes(tmp_path, [{"instance": "b:2", "host": "b"}])
    assert not problems, problems
    # The count of the exporter takes priority, also if its scrape has no label for the host.
    for own in ({"instance": "a:2", "host": "a"}, {"instance": "a:2"}):
        assert "got:[]" in "".join(processes(tmp_path, [own]).split()).replace("nil", "[]"), own
