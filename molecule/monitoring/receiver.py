# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write Alertmanager's alerts to /var/lib/receiver/alerts, one JSON text per line."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

ALERTS = Path("/var/lib/receiver/alerts")


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with ALERTS.open("a") as file:
            file.write("".join(json.dumps(alert) + "\n" for alert in told["alerts"]))
        self.send_response(200)
        self.end_headers()


HTTPServer(("127.0.0.1", 9099), Receiver).serve_forever()
