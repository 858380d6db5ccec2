# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how a bundle and its text files are verified."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import json
import lzma
import threading
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.plugin_utils.bundle import apt, fetch, mirror, papers, signature
from ansible_collections.openfleet.gpu.plugins.plugin_utils.bundle.model import (
    BundleError,
    Candidate,
    Item,
    Source,
    Wants,
    without_password,
)

pytestmark = pytest.mark.core

TRUSTED = ("A" * 40,)
VALID = "[GNUPG:] VALIDSIG %s 2025-01-01 1735689600 0 4 0 22 10 01 %s\n"


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ("[GNUPG:] GOODSIG 1 x\n" + VALID % ("B" * 40, "A" * 40), ""),
        # A subkey made the signature, and the subkey belongs to another key.
        ("[GNUPG:] GOODSIG 1 x\n" + VALID % ("A" * 40, "B" * 40), "it is not signed by a trusted key"),
        ("[GNUPG:] EXPKEYSIG 1 x\n" + VALID % ("A" * 40, "A" * 40), "EXPKEYSIG"),
        ("[GNUPG:] REVKEYSIG 1 x\n" + VALID % ("A" * 40, "A" * 40), "REVKEYSIG"),
        ("[GNUPG:] ERRSIG 1 22 10 01 1 9 x\n", "ERRSIG"),
        ("[GNUPG:] BADSIG 1 x\n", "the signature is wrong"),
        ("", "no signature"),
        # The vendor is changing its key, so the file has two signatures.
        ("[GNUPG:] ERRSIG 1 22 10 01 1 9 x\n[GNUPG:] GOODSIG 1 x\n" + VALID % ("A" * 40, "A" * 40), ""),
        ("[GNUPG:] GOODSIG 1 x\n" + VALID % ("A" * 40, "A" * 40) + "[GNUPG:] BADSIG 1 x\n", "the signature is wrong"),
    ],
)
def test_gpgv_status_is_judged_like_apt(status, problem):
    found = signature.judge(status, TRUSTED)
    assert (problem in found) if problem else found == ""


RELEASE = "Origin: x\nDate: x\n%sSHA256:\n %s 12 %s\n"


def test_forms_of_the_index_in_a_release():
    found = apt.index_files("Origin: x\nSHA256:\n aa 10 ./Packages.gz\n bb 30 Packages\n cc 4 Contents.gz\n", "x")
    assert found == {"Packages.gz": ("aa", 10), "Packages": ("bb", 30)}
    with pytest.raises(BundleError, match="no index"):
        apt.index_files("Origin: x\nMD5Sum:\n aa 10 Packages\n", "x")


@pytest.mark.parametrize("days", [-1, 1])
def test_expired_release_is_refused(days):
    until = format_datetime(datetime.now(timezone.utc) + timedelta(days=days))
    text = RELEASE % ("Valid-Until: %s\n" % until, "ab", "Packages")
    if days > 0:
        assert apt.index_files(text, "x") == {"Packages": ("ab", 12)}
        assert apt.valid_until(text) == until
    else:
        with pytest.raises(BundleError, match="so hosts refuse it"):
            apt.index_files(text, "x")


def source(**more):
    known = {
        "role": "nvidia_driver",
        "manager": "apt",
        "architecture": "x86_64",
        "url": "https://example.org/repos",
        "key_url": "https://example.org/key",
        "key": "",
        "fingerprints": TRUSTED,
        "folder": "repositories/driver/debian12/x86_64",
        "key_path": "repositories/driver/debian12/x86_64/key.pub",
    }
    return Source(**{**known, **more})


@pytest.mark.parametrize("path", ["../../etc/cron.d/x", "/etc/passwd", "a/../../x"])
def test_index_cannot_name_files_outside_of_its_repository(path):
    with pytest.raises(BundleError, match="outside"):
        mirror._package(source(), Candidate("x", "1", path, 1, "ab"))


class Vendor:
    """Replace the fetcher by a mapping of addresses to contents."""

    def __init__(self, contents):
        self.contents = contents
        self.asked = []

    def small(self, url, cure, optional=False):
        self.asked.append(url.rpartition("/")[2])
        return self.contents.get(self.asked[-1])


def packages_of(tmp_path, contents, listed):
    """Return the text of the index, the kept forms of the index, and the fetched ones."""
    vendor = Vendor(contents)
    found = mirror.Mirror(source())
    sums = {name: (hashlib.sha256(content).hexdigest(), len(content)) for name, content in listed.items()}
    text = mirror._packages(found, sums, tmp_path, vendor, {"a"})
    return text, [item.path.rpartition("/")[2] for item in found.index], vendor.asked


def test_all_forms_of_the_index_are_kept_and_fetched_once(tmp_path):
    text = b"Package: x\n"
    forms = {"Packages": text, "Packages.gz": gzip.compress(text), "Packages.xz": lzma.compress(text)}
    assert packages_of(tmp_path, forms, forms) == (
        text,
        ["Packages.xz", "Packages.gz", "Packages"],
        ["Packages.xz", "Packages.gz"],
    )


def test_missing_forms_of_the_index_are_skipped(tmp_path):
    text = b"Package: x\n"
    forms = {"Packages": text, "Packages.gz": gzip.compress(text), "Packages.xz": lzma.compress(text)}
    there = {"Packages.gz": forms["Packages.gz"]}
    assert packages_of(tmp_path, there, forms)[:2] == (text, ["Packages.gz", "Packages"])
    with pytest.raises(BundleError, match="none of the indexes"):
        packages_of(tmp_path, {}, forms)


def test_present_index_is_not_fetched(tmp_path):
    text = b"Package: x\n"
    fetch.write(tmp_path / source().folder / "Packages", text)
    assert packages_of(tmp_path, {}, {"Packages": text}) == (text, ["Packages"], [])


def test_file_is_written_atomically_and_only_if_different(tmp_path):
    path = tmp_path / "folder" / "file"
    assert fetch.write(path, b"one") is True
    assert fetch.write(path, b"one") is False
    assert fetch.write(path, b"two") is True
    assert path.read_bytes() == b"two"
    assert [found.name for found in path.parent.iterdir()] == ["file"]


class Odd(http.server.BaseHTTPRequestHandler):
    """Answer with a custom error reason, or with an invalid length."""

    def do_GET(self):
        if self.path == "/refused":
            self.send_response(403, "no\x1b[2J\x85" + "y" * 5000)
        else:
            self.send_response(200)
            self.send_header("Content-Length", "abc" if self.path == "/odd" else "\xb2")
        self.end_headers()
        self.wfile.write(b"xx")

    def log_message(self, *args):
        pass


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("refused", r"download failed: 403 no\x1b[2J\x85yyy"),
        ("odd", "its Content-Length is not a number"),
        ("superscript", "its Content-Length is not a number"),
    ],
)
def test_server_errors_are_printable(tmp_path, monkeypatch, path, problem):
    monkeypatch.setattr(fetch.time, "sleep", lambda _seconds: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            with pytest.raises(BundleError) as error:
                fetch.Fetcher(tmp_path).small("http://127.0.0.1:%d/%s" % (server.server_port, path), "Look there.")
        finally:
            server.shutdown()
    assert problem in str(error.value) and str(error.value).isprintable() and len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://me:secret@mirror.example.org:8443/repos", "https://mirror.example.org:8443/repos"),
        ("https://mirror.example.org/repos@2", "https://mirror.example.org/repos@2"),
    ],
)
def test_manifest_has_no_passwords(url, told):
    assert without_password(url) == told
    item = Item("a", "x", "ab", 1, url=url)
    mirrors = [mirror.Mirror(source(url=url))]
    text = papers.manifest("1.0", [item], mirrors, Wants(), {}, [])
    assert "secret" not in text
    assert json.loads(text)["files"][0]["from"] == told


def test_variables_of_a_bundle_are_yaml_without_fingerprints():
    wants = Wants(repositories={source(): {}, source(role="container_toolkit"): {}})
    items = [
        Item("files/a.deb", "container toolkit", "ab", 1, hosts={"h"}),
        Item("files/b.deb", "container toolkit", "cd", 1, hosts={"h"}),
        Item("files/x.run", "NVIDIA's installer", "ef", 1, hosts={"h"}),
    ]
    values = yaml.safe_load(papers.variables("/srv/b", "https://m.example.org/b", wants, items, "python/n.whl"))
    assert values["gpu_bundle_path"] == "/srv/b"
    assert values["gpu_bundle_url"] == "https://m.example.org/b"
    assert values["nvidia_driver_repository_url"].endswith("/driver/{directory}/{architecture}")
    assert values["container_toolkit_files"] == [
        {"path": "{{ gpu_bundle_path }}/files/a.deb", "sha256": "ab"},
        {"path": "{{ gpu_bundle_path }}/files/b.deb", "sha256": "cd"},
    ]
    assert values["gpu_layout_nvml_source"] == "wheel"
    assert not [name for name in values if "fingerprint" in name or name.endswith("_key")]


def test_wheels_of_the_plugin_for_leases_are_in_the_bundle():
    values = yaml.safe_load(papers.variables("/srv/b", "", Wants(leases={"x86_64": {"h"}}), [], ""))
    assert values["gpu_kubernetes_lease_wheels"] == "{{ gpu_bundle_path }}/python"


def test_values_that_differ_between_hosts_are_comments():
    items = [
        Item("files/a.run", "NVIDIA's installer", "ab", 1, hosts={"h"}),
        Item("files/b.run", "NVIDIA's installer", "cd", 1, hosts={"i"}),
    ]
    text = papers.variables("/srv/b", "", Wants(), items, "")
    assert "nvidia_driver_runfile" not in yaml.safe_load(text)
    assert "# nvidia_driver_runfile differs between hosts" in text


def test_equal_bundles_have_equal_texts():
    items = [Item(name, "x", "ab", 1, hosts={"b", "a"}) for name in ("two", "one")]
    first = papers.manifest("1.0", items, [], Wants(), {}, ["z", "y"])
    assert first == papers.manifest("1.0", items[::-1], [], Wants(), {}, ["y", "z"])
    assert papers.sums(items) == "ab  one\nab  two\n"
