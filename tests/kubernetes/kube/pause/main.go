// Copyright: (c) openfleet.gpu contributors
// SPDX-License-Identifier: GPL-3.0-or-later

// pause is the process of a pod's sandbox: it waits to be ended, and has to be a static program.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
}
