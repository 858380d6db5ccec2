# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers of HAMi 2.10.0 that were recorded on a node of the lab.

HAMi's programs (commit 4707fb02) were built and run by hand beside a real API server and kubelet (Kubernetes 1.34.4), on
simulated H100 GPUs. Its Go module is not available to the tests, so hami_stand_in.py gives these answers instead.

Recorded from the scheduler, with one registered GPU: a cordon alone was not noticed within 97 s. After the handshake was reset,
the scheduler answered within 15 s, and refused the next pod with "1/1 CardCordoned". While the kubelet offered no GPU, the
scheduler dropped the node after 60 s, and took it back 15 s later from the annotation that the device plugin had left.
"""

from __future__ import annotations

import json

VERSION = "2.10.0"
REGISTER, HANDSHAKE = "hami.io/node-nvidia-register", "hami.io/node-handshake"
CORDON = "hami.io/device-cordon"


def registration(*gpus: dict) -> str:
    """Return the device plugin's annotation REGISTER for these GPUs.

    Each GPU has `id` and `index`, and may differ from the recorded GPU in other values. Go omits `index`, `numa` and
    `health` if they are 0 or false.
    """
    recorded = {
        "count": 4,
        "devmem": 81559,
        "devcore": 100,
        "type": "NVIDIA H100 80GB HBM3",
        "mode": "hami-core",
        "health": True,
    }
    rows = [{**recorded, **gpu} for gpu in gpus]
    return json.dumps([{key: value for key, value in row.items() if value not in (0, False)} for row in rows])


def handshake(now: str = "2026-11-28 21:30:15") -> str:
    """Return the scheduler's value of HANDSHAKE after it has read the node."""
    return "Requesting_%s" % now


#: The scheduler's arguments in charts/hami/templates/scheduler/deployment.yaml.
SCHEDULER_ARGUMENTS = [
    "scheduler",
    "--http_bind=0.0.0.0:443",
    "--scheduler-name=hami-scheduler",
    "--node-scheduler-policy=binpack",
    "--gpu-scheduler-policy=spread",
    "--device-config-file=/device-config.yaml",
]


def deployment(ready: int = 1, arguments: list[str] | None = None) -> dict:
    """Return the scheduler's Deployment, as the chart creates it."""
    labels = {"app.kubernetes.io/component": "hami-scheduler"}
    container = {"name": "vgpu-scheduler-extender", "image": "none", "command": arguments or SCHEDULER_ARGUMENTS}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "hami-scheduler", "namespace": "kube-system", "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
        "status": {"readyReplicas": ready} if ready else {},
    }


def daemonset(config_map: str = "hami-device-plugin", selector: dict | None = None) -> dict:
    """Return the device plugin's DaemonSet, as the chart creates it."""
    labels = {"app.kubernetes.io/component": "hami-device-plugin"}
    spec = {
        "nodeSelector": selector or {"gpu": "on"},
        "containers": [{"name": "device-plugin", "image": "none"}],
        "volumes": [{"name": "deviceconfig", "configMap": {"name": config_map}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "hami-device-plugin", "namespace": "kube-system", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }


def webhook(failure_policy: str = "Ignore") -> dict:
    """Return the webhook's configuration.

    The chart's default policy is Ignore.
    """
    hook = {
        "name": "vgpu.hami.io",
        "failurePolicy": failure_policy,
        "clientConfig": {"url": "https://192.0.2.1:31998/webhook"},
        "admissionReviewVersions": ["v1beta1"],
        "sideEffects": "None",
        # The tests' API server has no such webhook, so it must not call it.
        "objectSelector": {"matchLabels": {"openfleet-lab": "never"}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "hami-webhook"},
        "webhooks": [hook],
    }


def starting_pod(node: str, uuid: str, phase: str = "allocating") -> dict:
    """Return the metadata of a pod that the scheduler has assigned to a GPU."""
    return {
        "annotations": {
            "hami.io/bind-phase": phase,
            "hami.io/vgpu-node": node,
            "hami.io/vgpu-devices-to-allocate": "%s,NVIDIA,20000,30:;" % uuid,
            "hami.io/vgpu-devices-allocated": "%s,NVIDIA,20000,30:;" % uuid,
        }
    }
