# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the messages of the kubelet's API for plugins.

Sources: k8s.io/kubelet, pkg/apis/pluginregistration/v1/api.proto, pkg/apis/dra/v1/api.proto (1.36) and
pkg/apis/deviceplugin/v1beta1/api.proto (1.34). The messages of pkg/apis/dra/v1beta1 are equal to those of v1, except that
they lack share_id.
"""

from __future__ import annotations

from .wire import Field

REGISTRATION = "pluginregistration.Registration"
#: DRA plugins' services, and the services' names at the registration.
SERVICES = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
PLUGIN_TYPE = "DRAPlugin"

INFO_REQUEST: dict = {}
PLUGIN_INFO = {
    1: Field("type", "text"),
    2: Field("name", "text"),
    3: Field("endpoint", "text"),
    4: Field("supported_versions", "text", many=True),
}
REGISTRATION_STATUS = {1: Field("plugin_registered", "flag"), 2: Field("error", "text")}
REGISTRATION_STATUS_RESPONSE: dict = {}

_CLAIM = {1: Field("namespace", "text"), 2: Field("uid", "text"), 3: Field("name", "text")}
_DEVICE = {
    1: Field("request_names", "text", many=True),
    2: Field("pool_name", "text"),
    3: Field("device_name", "text"),
    4: Field("cdi_device_ids", "text", many=True),
    5: Field("share_id", "text"),
}
PREPARE_REQUEST = {1: Field("claims", _CLAIM, many=True)}
PREPARE_RESPONSE = {
    1: Field("claims", {1: Field("devices", _DEVICE, many=True), 2: Field("error", "text")}, keyed=True)
}
UNPREPARE_REQUEST = {1: Field("claims", _CLAIM, many=True)}
UNPREPARE_RESPONSE = {1: Field("claims", {1: Field("error", "text")}, keyed=True)}

# The device plugin API. Only the fields that the plugin uses are defined.
DEVICE_PLUGIN_VERSION = "v1beta1"
DEVICE_PLUGIN, DEVICE_PLUGIN_REGISTRATION = "v1beta1.DevicePlugin", "v1beta1.Registration"
HEALTHY = "Healthy"

EMPTY: dict = {}
REGISTER_REQUEST = {1: Field("version", "text"), 2: Field("endpoint", "text"), 3: Field("resource_name", "text")}
DEVICE_PLUGIN_OPTIONS = {
    1: Field("pre_start_required", "flag"),
    2: Field("get_preferred_allocation_available", "flag"),
}
DEVICE_LIST = {1: Field("devices", {1: Field("id", "text"), 2: Field("health", "text")}, many=True)}
ALLOCATE_REQUEST = {1: Field("container_requests", {1: Field("device_ids", "text", many=True)}, many=True)}
_CDI_DEVICE = {1: Field("name", "text")}
ALLOCATE_RESPONSE = {1: Field("container_responses", {5: Field("cdi_devices", _CDI_DEVICE, many=True)}, many=True)}
