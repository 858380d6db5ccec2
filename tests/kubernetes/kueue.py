# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run Kueue beside the control plane.

The test builds Kueue from its Go module (folder kueue).
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Iterator, Mapping

from tests.kubernetes.beside import OTHER_USER, beside, free_port
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.go_programs import GoModule
from tests.lab.certificates import Authority

_MODULE = "sigs.k8s.io/kueue"
NO_GATES: Mapping[str, bool] = {}
# Kueue reads its metrics' certificates from a fixed folder, so it sees another /etc.
_INSIDE = """
mount -t tmpfs tmpfs "$0"
mkdir "$0/upper" "$0/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$0/upper,workdir=$0/work" /etc
mkdir -p /etc/kueue/metrics/certs
cp "$1"/tls.* /etc/kueue/metrics/certs
chmod -R a+rX "$0" /etc/kueue
shift
exec "$@"
"""


def why_not() -> str:
    """Say why this machine cannot build Kueue.

    Return `""` if it can.
    """
    return GoModule("kueue").problem()


def kinds() -> Path:
    """Return the folder with Kueue's kinds."""
    return GoModule("kueue").source(_MODULE) / "config" / "components" / "crd" / "bases"


@contextlib.contextmanager
def running(plane: ControlPlane, gates: Mapping[str, bool] = NO_GATES, **options: object) -> Iterator[None]:
    """Run Kueue without its webhooks until the end of the block.

    Its kinds must exist. `options` are added to its configuration.
    """
    built = GoModule("kueue").build(_MODULE + "/cmd/kueue") / "kueue"
    with beside(plane) as here:
        certificate = Authority(here.folder / "pki").issue("kueue", [plane.address])
        certificates = here.folder / "webhooks"
        certificates.mkdir()
        for source, name in ((certificate, "tls.crt"), (certificate.with_suffix(".key"), "tls.key")):
            here.add("webhooks/%s" % name, source.read_text())
        config = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": "%s:%d" % (plane.address, free_port(plane.address))},
            "metrics": {"bindAddress": "%s:%d" % (plane.address, free_port(plane.address))},
            "webhook": {"host": plane.address, "port": free_port(plane.address), "certDir": str(certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "integrations": {"frameworks": ["batch/job"]},
            "featureGates": {"VisibilityOnDemand": False, **gates},
            **options,
        }
        written = here.add("kueue.json", json.dumps(config))
        upper = here.folder / "etc"
        upper.mkdir()
        command = ["unshare", "--mount", "sh", "-ec", _INSIDE, str(upper), str(certificates)]
        with here.runs("kueue", [*command, *OTHER_USER, str(here.copy(built)), "--config=%s" % written], {}):
            yield


def job(name: str, namespace: str, spec: dict) -> dict:
    """Return a suspended Job with this pod specification.

    Kueue starts the Job.
    """
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {"kueue.x-k8s.io/queue-name": "default"}},
        "spec": {
            "suspend": True,
            "template": {"metadata": {"labels": {"app": name}}, "spec": {**spec, "restartPolicy": "Never"}},
        },
    }
