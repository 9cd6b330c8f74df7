// Command unbound_exporter serves unbound's counters at port 9167, for the container of that name in CKE's DaemonSet.
//
// Does not: use the exporter's names of metrics.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const patience = 5 * time.Second

func main() {
	host := flag.String("unbound.host", "unix:///var/run/unbound/unbound.sock", "unbound's control socket")
	reuse := flag.Bool("web.reuse-port", false, "share the port with another exporter, as two pods of a node do in an update")
	flag.Parse()
	socket, err := url.Parse(*host)
	if err != nil || socket.Scheme != "unix" {
		log.Fatalf("--unbound.host=%s: want unix:///PATH", *host)
	}
	http.HandleFunc("/metrics", func(response http.ResponseWriter, _ *http.Request) {
		counters, err := counters(socket.Path)
		if err != nil {
			http.Error(response, err.Error(), http.StatusBadGateway)
			return
		}
		for _, counter := range counters {
			fmt.Fprintln(response, counter)
		}
	})
	settings := net.ListenConfig{Control: func(_, _ string, connection syscall.RawConn) error {
		var failed error
		err := connection.Control(func(descriptor uintptr) {
			if *reuse {
				failed = unix.SetsockoptInt(int(descriptor), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}
		})
		return errors.Join(err, failed)
	}}
	listener, err := settings.Listen(context.Background(), "tcp", ":9167")
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(listener, nil))
}

// Asks unbound by its control protocol, as `unbound-control stats_noreset` does; an answer has a line NAME=VALUE a counter.
func counters(path string) ([]string, error) {
	connection, err := net.DialTimeout("unix", path, patience)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprint(connection, "UBCT1 stats_noreset\n"); err != nil {
		return nil, err
	}
	var counters []string
	lines := bufio.NewScanner(connection)
	for lines.Scan() {
		if name, value, found := strings.Cut(lines.Text(), "="); found {
			counters = append(counters, "unbound_"+strings.ReplaceAll(name, ".", "_")+" "+value)
		}
	}
	return counters, lines.Err()
}
