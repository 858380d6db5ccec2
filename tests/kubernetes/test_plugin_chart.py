# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install the device plugin as a Helm chart on a real API server without nodes.

In some tests the role installs the chart, in others Helm does.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.nvidia_dra import objects
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.nvidia_dra.backend import Dra
from tests.kubernetes import dra
from tests.kubernetes.control_plane import REPOSITORY
from tests.kubernetes.test_dra_webhook import PATH, RULES

#: This is not the plugin's usual namespace, because other tests on the same API server create that one.
NAMESPACE, CONFIG_MAP = "plugin-by-chart", "openfleet-gpu-device-plugin"
DRIVER = Path(__file__).with_name("dra-driver.yml")
GATE = '            - {name: FEATURE_GATES, value: "DynamicMIG=%s"}'


def write_chart(path):
    """Write a packed Helm chart of the plugin.

    The chart leaves out the objects that the role creates. It takes the name of the ConfigMap as a value.
    """
    objects = Path(__file__).with_name("device-plugin.yml").read_text().split("\n---\n")
    made_by_role = ("kind: Namespace\n", "kind: ConfigMap\n")
    kept = [each for each in objects if not any(kind in each for kind in made_by_role)]
    template = "\n---\n".join(kept).replace(CONFIG_MAP, "{{ .Values.config.name }}")
    template = template.replace("namespace: nvidia-device-plugin", "namespace: %s" % NAMESPACE)
    about = "apiVersion: v2\nname: device-plugin\nversion: 1.2.3\n"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in {"Chart.yaml": about, "templates/plugin.yaml": template}.items():
            member = tarfile.TarInfo("device-plugin/" + name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def variables(chart, kubeconfig):
    return {
        "ansible_python_interpreter": sys.executable,
        "gpu_kubernetes_backend": "nvidia_device_plugin",
        "gpu_kubernetes_kubeconfig": str(kubeconfig),
        "gpu_kubernetes_namespace": NAMESPACE,
        "gpu_kubernetes_plugin_chart": str(chart),
        "gpu_kubernetes_plugin_sha256": hashlib.sha256(chart.read_bytes()).hexdigest(),
        # plugin_plan.yml sets this value in a cluster without the ConfigMap.
        "gpu_kubernetes__plugin_lacks_default": True,
    }


def install(folder, given, path=os.environ["PATH"]):
    playbook = folder / "play.yml"
    role = {"name": "openfleet.gpu.gpu_kubernetes", "tasks_from": "plugin_install"}
    tasks = [{"name": "Install", "ansible.builtin.include_role": role}]
    playbook.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "vars": given, "tasks": tasks}]))
    return subprocess.run(
        ["ansible-playbook", "-i", "localhost,", "-c", "local", str(playbook)],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_chart_with_another_checksum_is_refused(tmp_path):
    chart = tmp_path / "plugin.tgz"
    write_chart(chart)
    given = {**variables(chart, tmp_path / "none"), "gpu_kubernetes_plugin_sha256": "0" * 64}
    refused = install(tmp_path, given)
    text = " ".join(refused.stdout.split())
    assert refused.returncode != 0
    assert "localhost: the device plugin of %s is not installed: " % chart in text
    assert "Check gpu_kubernetes_plugin_chart, gpu_kubernetes_plugin_sha256 and" in text


@pytest.mark.parametrize("enabled", [True, False])
def test_manifest_of_a_driver_that_removes_instances_is_not_installed(tmp_path, enabled):
    manifest = tmp_path / "driver.yml"
    manifest.write_text(DRIVER.read_text().replace("env:", "env:\n%s" % GATE % str(enabled).lower()))
    given = {
        "ansible_python_interpreter": sys.executable,
        "gpu_kubernetes_backend": "nvidia_dra",
        "gpu_kubernetes_kubeconfig": str(tmp_path / "none"),
        "gpu_kubernetes_plugin_manifest": str(manifest),
        "gpu_kubernetes_plugin_sha256": hashlib.sha256(manifest.read_bytes()).hexdigest(),
        "gpu_kubernetes__plugin_lacks_default": True,
    }
    text = " ".join(install(tmp_path, given).stdout.split())
    # If the manifest disables the gate, the role continues until it calls the cluster, which does not exist.
    assert "localhost: the DRA driver of %s is not installed: " % manifest in text
    assert ("the feature gate DynamicMIG removes MIG instances" in text) is enabled


@pytest.mark.thorough
def test_role_installs_the_plugin_from_a_chart_once(api_server, helm, tmp_path):
    chart = tmp_path / "plugin.tgz"
    write_chart(chart)
    path = "%s:%s" % (helm, os.environ["PATH"])

    def installed():
        done = install(tmp_path, variables(chart, api_server.kubeconfig), path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    installed()
    found = api_server.call("GET", "/apis/apps/v1/namespaces/%s/daemonsets/nvidia-device-plugin" % NAMESPACE)
    assert found["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    read = [
        volume["configMap"]["name"] for volume in found["spec"]["template"]["spec"]["volumes"] if "configMap" in volume
    ]
    assert read == [CONFIG_MAP]
    config_map = api_server.call("GET", "/api/v1/namespaces/%s/configmaps/%s" % (NAMESPACE, CONFIG_MAP))
    assert config_map["data"] == {"default": "version: v1\n"}
    assert len(config_map["metadata"]["annotations"]["openfleet.gpu/plugin"]) == 64
    assert "changed=0" in installed()


@pytest.mark.thorough
@pytest.mark.skipif(bool(dra.why_not()), reason="Go is too old for the DRA driver")
def test_role_installs_nvidias_chart_of_the_dra_driver_once(api_server, helm, tmp_path):
    namespace = "dra-by-chart"
    chart = tmp_path / "driver.tgz"
    with tarfile.open(chart, "w:gz") as archive:
        archive.add(dra.chart(), "dra-driver-nvidia-gpu")
    # The webhook has a Service without pods in this cluster.
    webhook = {"enabled": True, "failurePolicy": "Ignore", "tls": {"mode": "secret", "secret": {"name": "webhook"}}}
    given = {
        **variables(chart, api_server.kubeconfig),
        "gpu_kubernetes_backend": "nvidia_dra",
        "gpu_kubernetes_namespace": namespace,
        "gpu_kubernetes_plugin_values": {"webhook": webhook},
    }
    path = "%s:%s" % (helm, os.environ["PATH"])
    done = install(tmp_path, given, path)
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        name = "dra-driver-nvidia-gpu-kubelet-plugin"
        found = api_server.call("GET", "/apis/apps/v1/namespaces/%s/daemonsets/%s" % (namespace, name))
        # The role must find this DaemonSet by its selector, and read the feature gates from it.
        listed = {**found, "kind": "DaemonSet"}
        assert objects.daemonset([listed], Dra.defaults["selector"]) is listed
        enabled = {"DynamicMIG": "false", "MPSSupport": "true", "TimeSlicingSettings": "true"}
        assert enabled.items() <= objects.gates(listed).items()
        spec = found["spec"]["template"]["spec"]
        assert [each["name"] for each in spec["containers"]] == ["gpus"]
        # Only the role's label selects nodes, also in a cluster without node-feature-discovery.
        assert spec["nodeSelector"] == {"openfleet.gpu/backend": "nvidia_dra"}
        assert "affinity" not in spec
        for each in ("gpu.nvidia.com", "mig.nvidia.com"):
            assert api_server.find("/apis/resource.k8s.io/v1/deviceclasses/" + each)
        hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        [hook] = api_server.call("GET", "%s/dra-driver-nvidia-gpu-webhook-config" % hooks)["webhooks"]
        assert hook["clientConfig"]["service"]["path"] == PATH
        assert [{key: sorted(rule[key]) for key in RULES} for rule in hook["rules"]] == [RULES]
        again = install(tmp_path, given, path)
        assert "changed=0" in again.stdout, again.stdout
    finally:
        command = [str(helm / "helm"), "--kubeconfig=%s" % api_server.kubeconfig, "--namespace=" + namespace]
        subprocess.run([*command, "uninstall", "dra-driver-nvidia-gpu"], check=True, stdout=subprocess.DEVNULL)
