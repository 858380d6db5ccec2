# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs an exporter of GPU metrics on the host it runs on, or takes it away, and scrapes it."""
