package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// Without connections that stay open, each request reaches a pod of its own.
var pods = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func getPod(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := pods.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// resolve asks a server for an address of NAME@SERVER.
func resolve(ctx context.Context, target string) error {
	name, server, _ := strings.Cut(target, "@")
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, net.JoinHostPort(server, "53"))
	}}
	// With a dot at the end, so that no search domain of the host is tried.
	_, err := resolver.LookupNetIP(ctx, "ip4", strings.TrimSuffix(name, ".")+".")
	return err
}
