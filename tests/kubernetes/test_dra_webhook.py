# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check claims with the webhook of NVIDIA's DRA driver, on a real API server.

Like the driver, the webhook reads a claim's configuration, but it does so when a user creates the claim.
"""

from __future__ import annotations

import base64
import copy
import os
import socket
import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping
from tests.kubernetes import dra
from tests.kubernetes.control_plane import ApiError
from tests.kubernetes.go_programs import GoModule

pytestmark = pytest.mark.skipif(bool(dra.why_not()), reason="Go is too old for the DRA driver")

_HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PATH = "/validate-resource-claim-parameters"
#: The rules in the driver's chart.
RULES = {
    "apiGroups": ["resource.k8s.io"],
    "apiVersions": ["v1", "v1beta1", "v1beta2"],
    "operations": ["CREATE", "UPDATE"],
    "resources": ["resourceclaims", "resourceclaimtemplates"],
}
#: Every kind of sharing that the backend supports, with each kind of limit.
LAYOUT = [
    {
        "gpus": [0],
        "sharing": "mig",
        "mig": [
            {"profile": "3g.40gb", "mps": {"name": "inner", "clients": 2, "active_thread_percentage": 50}},
            {"profile": "1g.10gb", "count": 2},
        ],
    },
    {
        "gpus": [1],
        "sharing": "mps",
        "mps": {"name": "limited", "clients": 4, "active_thread_percentage": 25, "pinned_memory_limit": "18GiB"},
    },
    {"gpus": [2], "sharing": "mps", "mps": {"name": "unlimited", "clients": 3, "active_thread_percentage": 33}},
    *(
        {"gpus": [3 + number], "sharing": "time_slicing", "time_slicing": {"slice": word, "replicas": 4}}
        for number, word in enumerate(("default", "short", "medium", "long"))
    ),
    {"gpus": [7], "sharing": "exclusive"},
]


@pytest.fixture(scope="module")
def webhook(api_server, tmp_path_factory):
    """Run the webhook, and register it as the driver's chart does.

    The chart registers a Service in place of a URL.
    """
    program = GoModule("dra", cgo=True).build(dra.WEBHOOK) / "webhook"
    certificate = api_server.certificate("dra-webhook", [api_server.address])
    with socket.socket() as free:
        free.bind((api_server.address, 0))
        port = free.getsockname()[1]
    command = [str(program), "--port=%d" % port, "--tls-cert-file=%s" % certificate]
    command.append("--tls-private-key-file=%s" % certificate.with_suffix(".key"))
    log = tmp_path_factory.mktemp("webhook") / "log"
    url = "https://%s:%d%s" % (api_server.address, port, PATH)
    hook = {
        "name": "gpu.nvidia.com",
        "rules": [{**RULES, "scope": "Namespaced"}],
        "clientConfig": {"url": url, "caBundle": base64.b64encode(api_server.authority.read_bytes()).decode()},
        "failurePolicy": "Fail",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    environment = {**os.environ, "FEATURE_GATES": "MPSSupport=true,TimeSlicingSettings=true"}
    with log.open("w") as file, subprocess.Popen(command, env=environment, stdout=file, stderr=file) as process:
        try:
            api_server.call("POST", _HOOKS, {"metadata": {"name": "dra"}, "webhooks": [hook]})
            api_server.wait(lambda: checks(api_server), "the webhook")
            yield
        finally:
            api_server.call("DELETE", _HOOKS + "/dra")
            process.kill()


def checks(api_server):
    """Return whether the API server asks the webhook.

    The API server uses a new configuration after a moment.
    """
    try:
        create(api_server, "unknown", claim({"strategy": "Unknown"}))
    except ApiError as error:
        return "configs failed to validate" in str(error)
    api_server.call("DELETE", _CLAIMS + "/unknown")
    return False


def create(api_server, name, spec):
    api_server.call("POST", _CLAIMS, {"metadata": {"name": name}, "spec": spec})


def claim(sharing, kind="GpuConfig"):
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    opaque = {"driver": "gpu.nvidia.com", "parameters": parameters}
    return {"devices": {"requests": requests, "config": [{"requests": ["gpu"], "opaque": opaque}]}}


def test_webhook_accepts_each_claim_of_a_layout(api_server, webhook):
    mapping = kubernetes_mapping(LAYOUT, "nvidia_dra", expected_gpus=["H100-80GB"] * 8, node="n1")
    assert not mapping["problems"]
    configured = [each["claim"] for each in mapping["requests"] if "config" in each["claim"]["devices"]]
    assert len(configured) == 6
    for number, each in enumerate(configured):
        create(api_server, "accepted-%d" % number, each)
        api_server.call("DELETE", "%s/accepted-%d" % (_CLAIMS, number))


@pytest.mark.parametrize(
    ("sharing", "kind", "reason"),
    [
        ({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Longer"}}, "GpuConfig", "unknown time-slice"),
        ({"strategy": "MPS", "mpsConfig": {"activeThreads": 25}}, "GpuConfig", "unknown field"),
        (
            {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": -1}},
            "GpuConfig",
            "percentage must not be negative",
        ),
        ({"strategy": "Exclusive"}, "GpuConfig", "sharing strategy"),
        ({"strategy": "MPS"}, "Gpu", "no kind"),
    ],
)
def test_webhook_refuses_a_wrong_claim_with_the_reason(api_server, webhook, sharing, kind, reason):
    wrong = copy.deepcopy(claim(sharing, kind))
    with pytest.raises(ApiError) as raised:
        create(api_server, "wrong", wrong)
    assert 'admission webhook "gpu.nvidia.com" denied the request: 1 configs failed to validate' in str(raised.value)
    assert reason in str(raised.value)
