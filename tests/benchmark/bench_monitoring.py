# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure monitoring of 1,000 simulated GPUs in a real Prometheus.

Prometheus loads all rules and alerts. One small HTTP server provides the metrics of 125 hosts with 8 GPUs each. Half of
the hosts have the format of the embedded exporter, and half have the format of dcgm-exporter. One GPU in eight has
seven MIG instances. Each host also has the metrics of `gpu-layout metrics`. Values change with every scrape. SIZE is
the number of GPUs.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.benchmark.amounts import amount

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / ".lab" / "prometheus" / "usr" / "bin" / "prometheus"
FILES = ROOT / "roles" / "gpu_monitoring" / "files"
FIGURES = (
    "monitoring_series_per_gpu",
    "monitoring_rule_seconds_1000_gpus",
    "monitoring_slowest_group_seconds_1000_gpus",
    "monitoring_peak_memory_1000_gpus",
)
GPUS_PER_HOST = 8
#: Seconds between scrapes and between evaluations. The role's interval is longer, but the cost per round is the same.
INTERVAL = 10
ROUNDS = 6
#: Number of rounds to skip. In the first rounds, Prometheus creates all series.
WARM_UP = 2
#: Seconds after which the benchmark considers Prometheus broken.
DEADLINE = 600
MODEL = "NVIDIA H100 80GB HBM3"
DRIVER = "580.105.08"
#: nvitop's further metrics. Rules only read the encoders' and decoders' utilization, and throughputs if GPM has none.
UNREAD = (
    "gpu_memory_utilization_Percentage",
    "gpu_encoder_utilization_Percentage",
    "gpu_decoder_utilization_Percentage",
    "gpu_memory_percent_Percentage",
    "gpu_memory_free_MiB",
    "gpu_clock_sm_MHz",
    "gpu_clock_memory_MHz",
    "gpu_clock_graphics_MHz",
    "gpu_clock_video_MHz",
    "gpu_fan_speed_Percentage",
    "gpu_pcie_tx_throughput_MiBps",
    "gpu_pcie_rx_throughput_MiBps",
    "gpu_nvlink_total_tx_throughput_MiBps",
    "gpu_nvlink_total_rx_throughput_MiBps",
    "gpu_nvlink_mean_tx_throughput_MiBps",
    "gpu_nvlink_mean_rx_throughput_MiBps",
)
#: Profiling fields in the role's counters.csv.
PROF = (
    "GR_ENGINE_ACTIVE",
    "SM_ACTIVE",
    "SM_OCCUPANCY",
    "PIPE_TENSOR_ACTIVE",
    "DRAM_ACTIVE",
    "PCIE_TX_BYTES",
    "PCIE_RX_BYTES",
    "NVLINK_TX_BYTES",
    "NVLINK_RX_BYTES",
)
#: Device fields in the role's counters.csv, without FB_*, XIDs and some others.
DEV = (
    "SM_CLOCK",
    "MEM_CLOCK",
    "FAN_SPEED",
    "MEMORY_TEMP",
    "TOTAL_ENERGY_CONSUMPTION",
    "MEM_COPY_UTIL",
    "ENC_UTIL",
    "DEC_UTIL",
    "PCIE_REPLAY_COUNTER",
    "ECC_SBE_VOL_TOTAL",
    "ECC_DBE_VOL_TOTAL",
    "ECC_SBE_AGG_TOTAL",
    "ECC_DBE_AGG_TOTAL",
    "CORRECTABLE_REMAPPED_ROWS",
    "UNCORRECTABLE_REMAPPED_ROWS",
    "POWER_VIOLATION",
    "THERMAL_VIOLATION",
    "SYNC_BOOST_VIOLATION",
    "NVLINK_BANDWIDTH_TOTAL",
)


def figures(options):
    """Yield (name, value, unit) or (name, None, reason)."""
    gpus = amount(options, 1000, 16, "SIZE")
    fleet = Fleet(-(-gpus // GPUS_PER_HOST))
    interval = amount(options, INTERVAL, 1)
    try:
        with tempfile.TemporaryDirectory(prefix="openfleet-bench-") as directory, Server(fleet) as server:
            series, seconds, slowest, memory = measure(Path(directory), server.port, fleet, interval)
    except BenchError as error:
        yield from ((name, None, str(error)) for name in FIGURES)
        return
    yield FIGURES[0], series / fleet.gpus, "count"
    yield FIGURES[1], seconds, "s"
    yield FIGURES[2], slowest, "s"
    yield FIGURES[3], memory, "MiB"


class BenchError(Exception):
    """The reason why the benchmark cannot run."""


# --- The fleet ------------------------------------------------------------------------------------------------------


class Fleet:
    """Each host's exporter text.

    Values change in each scrape.
    """

    def __init__(self, hosts: int) -> None:
        self.hosts, self.gpus = hosts, hosts * GPUS_PER_HOST
        self.random = random.Random(1)

        # Create two texts per host in advance, so that creating them does not affect the measurement.
        self.texts = [[self.text(host).encode() for _ in range(2)] for host in range(hosts)]
        self.turn = [0] * hosts

    def next_text(self, host: int) -> bytes:
        self.turn[host] ^= 1
        return self.texts[host][self.turn[host]]

    def text(self, host: int) -> str:
        lines: list[str] = []
        for index in range(GPUS_PER_HOST):
            uuid = f"GPU-{host:08x}-0000-4000-8000-{index:012x}"
            instances = range(7) if index == 7 else ()
            (self._embedded if host % 2 else self._dcgm)(lines, uuid, index, instances)
            self._host(lines, uuid, index, instances)
        lines += ["openfleet_layout_check_success 1", f"openfleet_layout_check_timestamp_seconds {time.time():.0f}"]
        return "\n".join(lines) + "\n"

    def _embedded(self, lines, uuid, index, instances) -> None:
        value = self.random.random

        def labels(of, profile="", instance="", more=""):
            return (
                f'uuid="{of}",gpu_uuid="{uuid}",gpu_index="{index}",model="{MODEL}",mig_profile="{profile}",'
                f'mig_instance="{instance}"{more}'
            )

        whole = labels(uuid)
        nvitop = f'hostname="h",index="{index}",devicename="{MODEL}",uuid="{uuid}"'
        info = f',driver_version="{DRIVER}",pci_bus_id="00000000:{index:02X}:00.0"'
        lines += [
            f"openfleet_gpu_info{{{labels(uuid, more=info)}}} 1",
            f"openfleet_gpu_lost{{{whole}}} 0",
            f"openfleet_gpu_row_remap_pending{{{whole}}} 0",
            f"openfleet_gpu_row_remap_failed{{{whole}}} 0",
            f"openfleet_gpu_pcie_replays_total{{{whole}}} {index}",
            f"openfleet_gpu_pcie_bytes_per_second{{{whole}}} {1e10 * value():.0f}",
            f"openfleet_gpu_nvlink_bytes_per_second{{{whole}}} {1e11 * value():.0f}",
            f"gpu_power_usage_W{{{nvitop}}} {100 + 600 * value():.3f}",
            f"gpu_power_limit_W{{{nvitop}}} 700",
            f"gpu_temperature_C{{{nvitop}}} {30 + 50 * value():.0f}",
        ]
        lines += [f"{name}{{{nvitop}}} {value():.3f}" for name in UNREAD]
        for reason in ("sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake"):
            lines.append(f'openfleet_gpu_throttled{{{whole},reason="{reason}"}} 0')
        for kind in ("corrected", "uncorrected"):
            lines.append(f'openfleet_gpu_ecc_errors_total{{{whole},type="{kind}"}} 0')
        for cause in ("correctable", "uncorrectable"):
            lines.append(f'openfleet_gpu_remapped_rows{{{whole},cause="{cause}"}} 0')
        if not instances:
            lines.append(f"gpu_utilization_Percentage{{{nvitop}}} {100 * value():.0f}")
            lines.append(f'openfleet_gpu_job{{{whole},hpc_job="{4000 + index}"}} 1')
        devices = [(f"MIG-{uuid[4:]}-{number}", "1g.10gb", str(7 + number)) for number in instances] or [(uuid, "", "")]
        for of, profile, instance in devices:
            own = labels(of, profile, instance)
            nvitop = f'hostname="h",index="{index}",devicename="{MODEL}",uuid="{of}"'
            if instance:
                lines.append(f"openfleet_gpu_info{{{labels(of, profile, instance, info)}}} 1")
            lines += [
                f"openfleet_gpu_processes{{{own}}} 1",
                f"gpu_memory_used_MiB{{{nvitop}}} {9000 * value():.3f}",
                f"gpu_memory_total_MiB{{{nvitop}}} 9984",
            ]
            for name in ("graphics_active", "sm_active", "sm_occupancy", "memory_bandwidth_active", "tensor_active"):
                lines.append(f"openfleet_gpu_{name}_ratio{{{own}}} {value():.4f}")

    def _dcgm(self, lines, uuid, index, instances) -> None:
        value = self.random.random
        gpu = (
            f'gpu="{index}",UUID="{uuid}",pci_bus_id="00000000:{index:02X}:00.0",device="nvidia{index}",'
            f'modelName="{MODEL}",hostname="h",DCGM_FI_DRIVER_VERSION="{DRIVER}"'
        )
        for instance in instances or (None,):
            labels = gpu if instance is None else f'{gpu},GPU_I_PROFILE="1g.10gb",GPU_I_ID="{7 + instance}"'
            if instance is None:
                labels += f',hpc_job="{4000 + index}"'
                lines.append(f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {100 * value():.0f}")
            # The exporter repeats the GPU's own values for each of its instances.
            lines += [f"DCGM_FI_{name}{{{labels}}} {number}" for name, number in dcgm_values(value)]

    def _host(self, lines, uuid, index, instances) -> None:
        gpu = f'gpu_uuid="{uuid}",gpu_index="{index}"'
        lines += [
            f"openfleet_layout_drift{{{gpu}}} 0",
            f"openfleet_layout_differences{{{gpu}}} 0",
            f'openfleet_layout_sharing_info{{{gpu},sharing="exclusive"}} 1',
        ]
        for profile, instance in [("1g.10gb", str(7 + number)) for number in instances] or [("", "")]:
            device = f'{gpu},model="{MODEL}",mig_profile="{profile}",mig_instance="{instance}"'
            lines += [f'openfleet_holders{{{device},kind="{kind}"}} 1' for kind in ("process", "slurm")]
            lines.append(f"openfleet_holders_cpu_seconds_total{{{device}}} {1000 * self.random.random():.2f}")
        if index == 6:
            tenant = f'{gpu},tenant="t"'
            lines += [
                f'openfleet_mps_daemon_up{{daemon="inference",{gpu},mig_instance=""}} 1',
                f'openfleet_mps_server_deaths_total{{daemon="inference",{gpu},mig_instance=""}} 0',
                f"openfleet_tenant_memory_limit_bytes{{{tenant}}} 8589934592",
                f"openfleet_tenant_memory_used_bytes{{{tenant}}} 1073741824",
                f"openfleet_tenant_sm_limit_ratio{{{tenant}}} 0.3",
                f"openfleet_tenant_denied_total{{{tenant}}} 0",
            ]


def dcgm_values(value):
    """Yield (field, value) for the fields of the role's counters.csv."""
    used = 9000 * value()
    yield from (("DEV_FB_USED", f"{used:.0f}"), ("DEV_FB_FREE", f"{9984 - used:.0f}"), ("DEV_FB_RESERVED", "519"))
    yield from (("DEV_POWER_USAGE", f"{100 + 600 * value():.3f}"), ("DEV_GPU_TEMP", f"{30 + 50 * value():.0f}"))
    yield from (("DEV_POWER_MGMT_LIMIT", "700"), ("DEV_XID_ERRORS", "0"), ("DEV_CLOCKS_EVENT_REASONS", "1"))
    for name in PROF:
        yield f"PROF_{name}", f"{value():.6f}"
    for name in DEV:
        yield f"DEV_{name}", f"{100 * value():.0f}"
    yield from (("DEV_ROW_REMAP_PENDING", "0"), ("DEV_ROW_REMAP_FAILURE", "0"))


class Server:
    """Serve each host's text at the path of its number."""

    def __init__(self, fleet: Fleet) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                body = fleet.next_text(int(self.path.strip("/")))
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                """Log nothing."""

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, request, client_address):
                """Ignore scrapes that Prometheus aborted."""

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]

    def __enter__(self) -> Server:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.server.shutdown()
        self.server.server_close()


# --- Prometheus -----------------------------------------------------------------------------------------------------


def measure(directory: Path, port: int, fleet: Fleet, interval: int) -> tuple[float, float, float, float]:
    """Run Prometheus with all rules and return the worst values of the last rounds.

    The values are the number of series, the seconds of all groups in sequence, the seconds of the slowest group, and
    the peak memory in MiB.
    """
    rules = sorted((*(FILES / "rules").glob("*.yml"), *(FILES / "alerts").glob("*.yml")))
    targets = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {
                "__metrics_path__": f"/{host}",
                "job": "gpu_exporter",
                "instance": f"host{host}:9400",
                "host": f"host{host}",
            },
        }
        for host in range(fleet.hosts)
    ]
    config = {
        "global": {"scrape_interval": f"{interval}s", "evaluation_interval": f"{interval}s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [{"job_name": "gpu_exporter", "static_configs": targets}],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = directory / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address={address}",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        return watch(process, f"http://{address}", log, fleet.hosts, interval)
    finally:
        process.terminate()
        process.wait()


def watch(
    process: subprocess.Popen, url: str, log: Path, hosts: int, interval: int
) -> tuple[float, float, float, float]:
    until = time.monotonic() + DEADLINE
    rounds: list[list[float]] = []
    began, spent, warm = 0.0, 0.0, 0
    while len(rounds) < ROUNDS:
        time.sleep(interval)
        if process.poll() is not None or time.monotonic() > until:
            raise BenchError(f"Prometheus does not run, or not in time: {log.read_text()[-300:]!r}")
        # In the first rounds, some hosts are still missing.
        try:
            if len(query(url, "count by (host) (gpu:info)")) < hosts:
                continue
            warm += 1
            if warm <= WARM_UP:
                continue
            rounds.append(seconds_of_groups(url))
            if not began:
                began, spent = time.monotonic(), cpu_seconds(process.pid)
        except OSError:
            continue
        print(f"bench: all rules in {sum(rounds[-1]):.3f} s", file=sys.stderr)
    broken = [
        f"{rule['name']}: {rule.get('lastError')}"
        for group in get(url, "/api/v1/rules")["data"]["groups"]
        for rule in group["rules"]
        if rule["health"] != "ok"
    ]
    if broken:
        raise BenchError(f"a rule is broken: {broken[0]}")
    recorded = number(url, 'count({__name__=~"gpu:.+|gpu_map:.+"})')
    series = number(url, 'count({host=~".+"})')
    print(f"bench: of {series:.0f} series {recorded:.0f} are recorded", file=sys.stderr)
    cpu = (cpu_seconds(process.pid) - spent) / (time.monotonic() - began) * interval
    print(f"bench: {cpu:.2f} s of CPU in a round, scrapes included", file=sys.stderr)
    status = Path(f"/proc/{process.pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return series, max(map(sum, rounds)), max(map(max, rounds)), peak / 1024


def cpu_seconds(pid: int) -> float:
    """Return a process's user and system time in seconds.

    The time is slightly higher if other processes use the same cores.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds_of_groups(url: str) -> list[float]:
    """Return how many seconds each group's last evaluation took."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return [
        float(line.split()[-1]) for line in lines if line.startswith("prometheus_rule_group_last_duration_seconds{")
    ]


def get(url: str, path: str) -> dict:
    with urllib.request.urlopen(url + path, timeout=60) as answer:
        return json.load(answer)


def query(url: str, expr: str) -> list:
    return get(url, "/api/v1/query?" + urllib.parse.urlencode({"query": expr}))["data"]["result"]


def number(url: str, expr: str) -> float:
    return float(query(url, expr)[0]["value"][1])
