# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test messages, devices and calls of the plugin that gives leases to pods.

The gRPC client is real, and so is the lease service behind its socket. Only the GPUs, units and the API server are in
memory. tests/kubernetes/test_openfleet_dra.py uses a real API server and kubelet.
"""

from __future__ import annotations

import copy
import dataclasses
import http.server
import json
import sys
import tempfile
import threading
import urllib.parse
from pathlib import Path

import grpc
import pytest
import tomllib
from hypothesis import given
from hypothesis import strategies as st

FILES = Path(__file__).parents[3] / "roles" / "gpu_kubernetes" / "files"
sys.path.insert(0, str(FILES))

from openfleet_dra import checkpoint, claims, devices, kubelet_api, wire
from openfleet_dra.claims import ClaimError
from openfleet_dra.cluster import Cluster, ClusterError
from openfleet_dra.lease_client import LeaseError, Leases
from openfleet_dra.plugin import Plugin
from openfleet_dra.server import serving

from ansible_collections.openfleet.gpu.plugins.module_utils.leases.record import BookingRecord
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import VgpuSeat, VgpuTenant
from ansible_collections.openfleet.gpu.plugins.plugin_utils import python_pins
from tests.unit.module_utils.leases.lease_socket import LeaseSocket
from tests.unit.module_utils.leases.lease_world import GIB, World

NODE = "node1"
UID = "01234567-89ab-cdef-0123-456789abcdef"


def test_tests_use_the_versions_of_hosts():
    hosts = python_pins.read((FILES / "dra-requirements.txt").read_text())
    groups = tomllib.loads((FILES.parents[2] / "pyproject.toml").read_text())["dependency-groups"]
    assert {"%s==%s" % (pin.name, pin.version) for pin in hosts if pin.name in ("grpcio", "pyyaml")} <= {
        each.lower() for each in groups["unit"] if isinstance(each, str)
    }


# -- Messages ----------------------------------------------------------------------------------------------------------


def test_messages_have_the_bytes_of_protobuf():
    """Compare with bytes from the rules of protobuf, which were written by hand."""
    status = {"plugin_registered": True, "error": "no"}
    assert wire.encode(kubelet_api.REGISTRATION_STATUS, status) == b"\x08\x01\x12\x02no"
    claim = b"\x0a\x01n\x12\x01u\x1a\x01c"
    request = {"claims": [{"namespace": "n", "uid": "u", "name": "c"}]}
    assert wire.decode(kubelet_api.PREPARE_REQUEST, b"\x0a\x09" + claim) == request
    # A map is a list of entries. An answer without devices and error still has its entry.
    assert wire.encode(kubelet_api.UNPREPARE_RESPONSE, {"claims": {"u": {}}}) == b"\x0a\x05\x0a\x01u\x12\x00"
    failed = b"\x0a\x0a\x0a\x01u\x12\x05\x12\x03bad"
    assert wire.encode(kubelet_api.PREPARE_RESPONSE, {"claims": {"u": {"error": "bad"}}}) == failed


def test_unknown_fields_are_ignored():
    known = b"\x12\x02no"
    for unknown in (b"\x38\x96\x01", b"\x7a\x02hi", b"\x39" + 8 * b"x", b"\x3d" + 4 * b"x"):
        decoded = wire.decode(kubelet_api.REGISTRATION_STATUS, unknown + known)
        assert decoded == {"plugin_registered": False, "error": "no"}


DEFINITIONS = [value for name, value in vars(kubelet_api).items() if name.isupper() and isinstance(value, dict)]
DEFINITIONS = [each for each in DEFINITIONS if all(isinstance(number, int) for number in each)]


@given(st.sampled_from(DEFINITIONS), st.binary(max_size=60))
def test_arbitrary_bytes_are_a_message_or_an_error(definition, data):
    try:
        values = wire.decode(definition, data)
    except wire.WireError:
        return
    assert wire.decode(definition, wire.encode(definition, values)) == values


def test_deep_and_long_messages_are_refused():
    with pytest.raises(wire.WireError):
        wire.decode(kubelet_api.PREPARE_REQUEST, b"\x0a\x7f")
    with pytest.raises(wire.WireError):
        wire.decode({}, bytes((4 << 20) + 1))


# -- Devices and claims ------------------------------------------------------------------------------------------------

GPU = {
    "uuid": "GPU-0",
    "memory_bytes": 40 * GIB,
    "sm_percent": 100,
    "seats": 8,
    "most_memory_bytes": 30 * GIB,
    "most_sm_percent": None,
}
TENANT = {"name": "Big.Model", "memory_bytes": 8 * GIB, "sm_percent": 30, "uuids": ["GPU-0"], "cdi": ["a/b=c"]}
POOL = {"gpus": [GPU, {**GPU, "uuid": "GPU-1"}], "tenants": [TENANT]}


def test_gpu_is_a_device_with_capacities_and_the_limits_of_a_claim():
    gpu = devices.devices(POOL, True)[0]
    assert gpu["name"] == "gpu-0" and gpu["allowMultipleAllocations"] is True
    assert gpu["capacity"]["memory"] == {
        "value": "40Gi",
        "requestPolicy": {"default": "1Mi", "validRange": {"min": "1Mi", "max": "30Gi", "step": "1Mi"}},
    }
    assert gpu["capacity"]["smPercent"]["requestPolicy"]["validRange"]["max"] == "100"
    assert gpu["capacity"]["seats"] == {"value": "8", "requestPolicy": {"default": "1", "validValues": ["1"]}}


@pytest.mark.parametrize(
    ("mib", "text"), [(1, "1Mi"), (1024, "1Gi"), (81559, "81559Mi"), (1536, "1536Mi"), (1 << 20, "1Ti")]
)
def test_sizes_have_the_form_of_the_api_server(mib, text):
    assert devices.size(mib) == text and claims.quantity(text) == mib << 20


def test_cluster_without_shares_gets_only_tenants():
    [tenant] = devices.devices(POOL, False)
    assert tenant["attributes"]["tenant"] == {"string": "Big.Model"} and "allowMultipleAllocations" not in tenant
    assert devices.tenant_device("serving") == "tenant-serving"
    assert tenant["name"].startswith("tenant-") and tenant["name"] == tenant["name"].lower()


@pytest.mark.parametrize("change", [{"memory_bytes": 1000}, {"sm_percent": 0}, {"seats": 0}], ids=str)
def test_gpu_that_fixed_tenants_fill_is_no_device(change):
    assert devices.devices({"gpus": [{**GPU, **change}], "tenants": []}, True) == []


def test_slices_have_at_most_64_devices():
    published = [{"name": "d%d" % number} for number in range(130)]
    made = devices.slices(NODE, "uid", published, 4)
    assert [len(item["spec"]["devices"]) for item in made] == [64, 64, 2]
    assert {item["spec"]["pool"]["resourceSliceCount"] for item in made} == {3}
    assert devices.same(made, copy.deepcopy(made)) and devices.newest(made) == 4
    # A generation that was written only in part is written again.
    mixed = copy.deepcopy(made)
    mixed[1]["spec"]["pool"]["generation"] = 3
    assert not devices.same(made, mixed) and not devices.same(made, made[:2])


QUANTITIES = {"18Gi": 18 << 30, "1536Mi": 1536 << 20, "30": 30, "2e3": 2000, "1G": 10**9, "1.5Gi": 3 << 29, "5000m": 5}


@pytest.mark.parametrize(("text", "value"), QUANTITIES.items())
def test_quantities_of_the_api(text, value):
    assert claims.quantity(text) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "1m", "1Qi", "1e-3", None, "9" * 50])
def test_invalid_quantities_are_refused(text):
    with pytest.raises(ClaimError):
        claims.quantity(text)


def result(device="gpu-0", memory="18Gi", percent="30", **change):
    own = {"request": "gpu", "driver": devices.DRIVER, "pool": NODE, "device": device, "shareID": "share-" + device}
    return {**own, "consumedCapacity": {"memory": memory, "smPercent": percent, "seats": "1"}, **change}


def claim(*results, uid=UID):
    allocation = {"devices": {"results": list(results)}}
    return {"metadata": {"name": "job", "namespace": "research", "uid": uid}, "status": {"allocation": allocation}}


def test_lease_has_the_consumed_capacity():
    found = claims.read(claim(result("gpu-1"), result()), NODE, POOL)
    assert (found.uuids, found.memory_bytes, found.sm_percent) == (("GPU-1", "GPU-0"), 18 * GIB, 30)
    assert claims.read(claim(result(driver="other"), result(pool="node2")), NODE, POOL) is None
    assert claims.read(claim(), NODE, POOL) is None and claims.read({}, NODE, POOL) is None


TENANT_DEVICE = devices.tenant_device("Big.Model")
REFUSED = {
    "several requests": (result(), result("gpu-1", request="more")),
    "adminAccess": (result(adminAccess=True),),
    "no longer offers the device tenant-gone": (result("tenant-gone"),),
    "several tenants": (result(TENANT_DEVICE), result(TENANT_DEVICE)),
    "a tenant and a GPU": (result(), result(TENANT_DEVICE)),
    "several shares of one GPU": (result(), result(shareID="other")),
    "different sizes": (result(), result("gpu-1", "1Gi")),
    "feature gate DRAConsumableCapacity": (result(consumedCapacity=None),),
    "no valid quota": (result(memory="1Ki"),),
    "101 % are no valid quota": (result(percent="101"),),
}


@pytest.mark.parametrize(("problem", "results"), REFUSED.items())
def test_claim_that_a_container_cannot_use_is_refused(problem, results):
    with pytest.raises(ClaimError, match=problem):
        claims.read(claim(*results), NODE, POOL)


# -- Calls from the kubelet --------------------------------------------------------------------------------------------


class ApiServer:
    """An API server with one node, ResourceSlices and ResourceClaims.

    `gate` is the feature gate DRAConsumableCapacity. Without the gate, the API server drops the field for shares.
    """

    def __init__(self) -> None:
        self.gate = True
        self.claims: dict[str, dict] = {}
        self.pods: dict[str, dict] = {}
        self.reads_of_pods = 0
        self.slices: dict[str, dict] = {}
        self.writes: list[tuple[str, str]] = []
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self._answer(*api.answer("GET", self.path))

            def do_POST(self):
                self._answer(*api.answer(self.command, self.path, self._body()))

            do_PUT = do_POST

            def do_DELETE(self):
                self._answer(*api.answer("DELETE", self.path))

            def _body(self):
                return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

            def _answer(self, status, data):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(data).encode())

            def log_message(self, *_arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]

    def answer(self, method, path, body=None):
        split = urllib.parse.urlsplit(path)
        names = split.path.strip("/").split("/")
        if split.path == "/api/v1/nodes/node1":
            return 200, {"metadata": {"uid": "node-uid"}}
        if names[:2] == ["api", "v1"]:
            self.reads_of_pods += 1
            found = self.pods.get("/".join((names[3], names[5])))
            return (200, found) if found else (404, {"message": "not found"})
        if names[3] == "namespaces":
            found = self.claims.get("/".join((names[4], names[6])))
            return (200, found) if found else (404, {"message": "not found"})
        if method == "GET":
            assert split.query == "fieldSelector=spec.nodeName%3Dnode1"
            return 200, {"items": list(self.slices.values())}
        if method == "DELETE":
            self.writes.append((method, names[-1]))
            return 200, self.slices.pop(names[-1])
        stored = copy.deepcopy(body)
        for device in stored["spec"]["devices"]:
            if not self.gate:
                device.pop("allowMultipleAllocations", None)
        stored["metadata"]["resourceVersion"] = str(len(self.writes) + 1)
        if split.query != "dryRun=All":
            self.writes.append((method, stored["metadata"]["name"]))
            self.slices[stored["metadata"]["name"]] = stored
        return 200, stored

    def devices(self):
        return [device["name"] for item in self.slices.values() for device in item["spec"]["devices"]]


@pytest.fixture
def api():
    found = ApiServer()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


@pytest.fixture
def tmp_path():
    """Return a short path, because a Unix socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="dra-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def kubeconfig(tmp_path, api):
    path = tmp_path / "kubelet.conf"
    path.write_text(
        "clusters: [{name: lab, cluster: {server: '%s'}}]\nusers: [{name: node, user: {token: secret}}]\n"
        "contexts: [{name: lab, context: {cluster: lab, user: node}}]\ncurrent-context: lab\n" % api.url
    )
    return path


@pytest.fixture
def log():
    return []


@pytest.fixture
def plugin(tmp_path, api, world, kubeconfig, log):
    leases = LeaseSocket(tmp_path / "leases.sock", world.ask_as_plugin)
    yield Plugin(NODE, Cluster(kubeconfig), Leases(leases.path), tmp_path, log.append)
    leases.close()


def call(path, service, method, request, response, values):
    """Call a method of the plugin as the kubelet does, with bytes over a socket."""
    with grpc.insecure_channel("unix:%s" % path) as channel:
        sent = channel.unary_unary(
            "/%s/%s" % (service, method),
            request_serializer=lambda data: wire.encode(request, data),
            response_deserializer=lambda data: wire.decode(response, data),
        )
        return sent(values, timeout=30)


def asked(**values):
    return {"claims": [{"namespace": "research", "uid": UID, "name": "job", **values}]}


@pytest.mark.parametrize("version", sorted(kubelet_api.SERVICES))
def test_kubelet_registers_the_plugin_and_prepares_a_claim(tmp_path, api, world, plugin, log, version):
    api.claims["research/job"] = claim(result())
    with serving(plugin, tmp_path, log.append):
        registration = tmp_path / "plugins_registry" / "gpu.openfleet.io-reg.sock"
        service = kubelet_api.REGISTRATION
        info = call(registration, service, "GetInfo", kubelet_api.INFO_REQUEST, kubelet_api.PLUGIN_INFO, {})
        assert (info["type"], info["name"]) == ("DRAPlugin", devices.DRIVER)
        assert info["supported_versions"] == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        status = (kubelet_api.REGISTRATION_STATUS, kubelet_api.REGISTRATION_STATUS_RESPONSE)
        call(registration, service, "NotifyRegistrationStatus", *status, {"plugin_registered": True})
        assert log == ["the kubelet registered the plugin"]
        endpoint, service = Path(info["endpoint"]), kubelet_api.SERVICES[version]
        for path in (registration, endpoint):
            assert path.stat().st_mode & 0o077 == 0
        prepare = ("NodePrepareResources", kubelet_api.PREPARE_REQUEST, kubelet_api.PREPARE_RESPONSE)
        answer = call(endpoint, service, *prepare, asked())["claims"][UID]
        assert answer == {
            "devices": [
                {
                    "request_names": ["gpu"],
                    "pool_name": NODE,
                    "device_name": "gpu-0",
                    "cdi_device_ids": ["openfleet.io/vgpu=lease-1"],
                    "share_id": "share-gpu-0",
                }
            ],
            "error": "",
        }
        assert str(world.parts[1][0]) == "18GiB and 30 %"
        unprepare = ("NodeUnprepareResources", kubelet_api.UNPREPARE_REQUEST, kubelet_api.UNPREPARE_RESPONSE)
        assert call(endpoint, service, *unprepare, asked()) == {"claims": {UID: {"error": ""}}}
        assert world.parts == {}
    assert not registration.exists() and not endpoint.exists()


@pytest.mark.parametrize(
    ("classes", "uid", "is_online"),
    [
        (["inference"], "uid-0", True),
        (["batch"], "uid-0", False),
        ([None], "uid-0", False),
        (["inference", "inference"], "uid-0", True),
        (["inference", "batch"], "uid-0", False),
        # A new pod has the name of the pod that uses the claim.
        (["inference"], "uid-of-another-pod", False),
        ([], "uid-0", False),
    ],
)
def test_priority_class_of_the_pods_decides_whether_a_lease_is_online(api, world, plugin, classes, uid, is_online):
    world.pod_leases = dataclasses.replace(world.pod_leases, online=("inference",))
    shared = claim(result())
    shared["status"]["reservedFor"] = []
    for number, name in enumerate(classes):
        shared["status"]["reservedFor"].append(
            {"resource": "pods", "name": "pod-%d" % number, "uid": "uid-%d" % number}
        )
        pod_uid = uid if number == 0 else "uid-%d" % number
        api.pods["research/pod-%d" % number] = {"metadata": {"uid": pod_uid}, "spec": {"priorityClassName": name}}
    api.claims["research/job"] = shared
    assert plugin.prepare(asked())["claims"][UID].get("error", "") == ""
    [booking] = BookingRecord(world.directory).read().bookings
    assert booking.request.online is is_online and api.reads_of_pods == len(classes)


def test_pods_are_not_read_if_no_entry_names_priority_classes(api, world, plugin):
    api.claims["research/job"] = claim(result())
    api.claims["research/job"]["status"]["reservedFor"] = [{"resource": "pods", "name": "pod-0", "uid": "uid-0"}]
    assert plugin.prepare(asked())["claims"][UID].get("error", "") == ""
    assert not api.reads_of_pods


def test_errors_name_the_claim_and_leave_no_lease(api, world, plugin):
    def problem(**values):
        [answer] = plugin.prepare(asked(**values))["claims"].values()
        return answer["error"]

    assert problem() == "claim research/job: it was deleted."
    api.claims["research/job"] = claim(result())
    assert problem(uid="another") == "claim research/job: it was deleted."
    api.claims["research/job"] = claim(result("gpu-9"))
    assert "gpu GPU-9 has no leases by kubernetes" in problem()
    api.claims["research/job"] = claim(result())
    world.changing = True
    assert "a layout change runs" in problem()
    assert world.parts == {}


def test_lease_is_prepared_again_on_a_gpu_that_is_not_offered_at_the_moment(api, world, plugin):
    """Prepare the claim of a running pod again, as a restarted kubelet does."""
    api.claims["research/job"] = claim(result())
    first = plugin.prepare(asked())
    world.gpus = 0
    assert plugin.prepare(asked()) == first and len(world.parts) == 1


def test_claim_in_use_is_not_given_back(api, world, plugin):
    api.claims["research/job"] = claim(result())
    plugin.prepare(asked())
    world.escaped.add(1)
    assert "pid 7 uses it" in plugin.unprepare(asked())["claims"][UID]["error"]
    assert 1 in world.parts


def test_fixed_tenant_needs_no_lease(api, world, plugin):
    world.fixed = (VgpuTenant("serving", 8 * GIB, 30, (VgpuSeat("GPU-0", 0),)),)
    api.claims["research/job"] = claim(result("tenant-serving", consumedCapacity=None))
    [answer] = plugin.prepare(asked())["claims"].values()
    assert answer["devices"][0]["cdi_device_ids"] == ["openfleet.io/vgpu=serving", "nvidia.com/gpu=GPU-0"]
    assert world.parts == {}


def test_slices_follow_the_layout(api, world, plugin):
    plugin.tick()
    assert api.devices() == ["gpu-0", "gpu-1"] and len(api.writes) == 1
    plugin.tick()
    assert len(api.writes) == 1
    world.gpus = 1
    world.fixed = (VgpuTenant("serving", 8 * GIB, 30, (VgpuSeat("GPU-0", 0),)),)
    plugin.tick()
    assert api.devices() == ["gpu-0", "tenant-serving"]
    [item] = api.slices.values()
    assert item["spec"]["pool"] == {"name": NODE, "generation": 2, "resourceSliceCount": 1}
    assert item["metadata"]["ownerReferences"][0]["uid"] == "node-uid"


def test_cluster_without_the_gate_never_sees_a_gpu(api, world, plugin):
    api.gate = False
    world.fixed = (VgpuTenant("serving", 8 * GIB, 30, (VgpuSeat("GPU-0", 0),)),)
    for _turn in range(2):
        plugin.tick()
        assert api.devices() == ["tenant-serving"] and len(api.writes) == 1
    api.gate = True
    plugin.tick()
    assert api.devices() == ["gpu-0", "gpu-1", "tenant-serving"]


def write_checkpoint(folder, *uids):
    data = {"kind": "DRACheckpoint", "ClaimInfoStateList": [{"ClaimUID": uid} for uid in uids] or None}
    (folder / "dra_manager_state").write_text(json.dumps({"Data": json.dumps(data), "Checksum": 1}))


def test_lease_that_the_kubelet_does_not_know_is_given_back(tmp_path, api, world, plugin, log):
    api.claims["research/job"] = claim(result())
    plugin.prepare(asked())
    # Without a checkpoint, nothing is known.
    for _turn in range(3):
        plugin.give_back_stale()
    write_checkpoint(tmp_path, UID)
    for _turn in range(3):
        plugin.give_back_stale()
    assert 1 in world.parts
    write_checkpoint(tmp_path)
    plugin.give_back_stale()
    # The kubelet may write a claim at any time.
    write_checkpoint(tmp_path, UID)
    plugin.give_back_stale()
    write_checkpoint(tmp_path)
    plugin.give_back_stale()
    assert 1 in world.parts
    plugin.give_back_stale()
    assert world.parts == {} and "does not know" in log[-1]


@pytest.mark.parametrize("text", ["", "{}", '{"Data": "{}"}', '{"Data": 7}', '{"Data": "[]"}', "\xff"])
def test_unreadable_checkpoint_proves_nothing(tmp_path, text):
    (tmp_path / "dra_manager_state").write_text(text)
    assert checkpoint.claims(tmp_path) is None


def test_problems_are_logged_once(api, world, plugin, log):
    world.changing = True
    for _turn in range(3):
        plugin.tick()
    assert len(log) == 1 and "a layout change runs" in log[0]


def test_kubeconfig_with_a_program_is_refused(tmp_path, kubeconfig):
    kubeconfig.write_text(kubeconfig.read_text().replace("token: secret", "exec: {command: aws}"))
    with pytest.raises(ClusterError, match="has a program for credentials"):
        Cluster(kubeconfig).find("/api/v1/nodes/node1")
    with pytest.raises(ClusterError, match="no kubeconfig"):
        Cluster(tmp_path / "missing").find("/api/v1/nodes/node1")


def test_lease_service_that_does_not_run_is_named(tmp_path):
    with pytest.raises(LeaseError, match=r"leases\.sock"):
        Leases(str(tmp_path / "leases.sock")).ask(op="pool")
