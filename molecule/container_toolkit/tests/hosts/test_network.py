# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that no host of this scenario reaches a network.

All packages come from the mirror.
"""

from __future__ import annotations

import pytest

HOSTS = pytest.mark.parametrize("name", ["boxes", "engines", pytest.param("whole", marks=pytest.mark.thorough)])
#: The exit status is 0 if an address responds or refuses, or if there is a route to it. The status 101 means "Network
#: is unreachable".
TRY = (
    "import socket, sys\n"
    "try: socket.create_connection((sys.argv[1], 443), timeout=5)\n"
    "except OSError as error: sys.exit(error.errno == 101 and 101 or 0)"
)


@HOSTS
def test_host_has_no_route_to_the_network(lab_host, name):
    host = lab_host(name)
    routes = [
        line
        for family in ("-4", "-6")
        for line in host.check_output(f"ip {family} route show table all").splitlines()
        if line and " dev lo " not in f"{line} "
    ]
    assert routes == []
    # Documentation addresses, which a default route would cover (RFC 5737, RFC 3849).
    for address in ("192.0.2.1", "2001:db8::1"):
        assert host.run(f"python3 -c '{TRY}' {address}").rc == 101, address


@HOSTS
def test_no_proxy_reaches_the_network(lab_host, name):
    host = lab_host(name)
    assert host.run("env | grep -i _proxy").stdout == ""
    assert host.run("grep -rniE '^[^#/]*proxy' /etc/apt /etc/environment").stdout == ""


@HOSTS
def test_mirror_answers(lab_host, name):
    """Check as a control that the mirror is reachable."""
    said = lab_host(name).check_output(
        "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:8080/toolkit/lab.pub\").read())'"
    )
    assert "BEGIN PGP PUBLIC KEY BLOCK" in said
