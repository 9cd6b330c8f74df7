// Command echo answers each connection to port 8080 with an HTTP response that names its pod. With -mounts it prints its mounts.
package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// Clients are tests, which send their request at once.
const patience = 5 * time.Second

func main() {
	if slices.Contains(os.Args, "-mounts") {
		mounts, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(string(mounts))
		return
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	name, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", ":8080")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				log.Fatal(err)
			}
			go answer(connection, name)
		}
	}()
	<-ended
}

func answer(connection net.Conn, name string) {
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(patience))
	// An answer before the request is read could be lost in a reset.
	if _, err := connection.Read(make([]byte, 4096)); err != nil {
		return
	}
	fmt.Fprintf(connection, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(name), name)
}
