//go:build previous

package main

import (
	"github.com/spf13/cobra"
	"k8s.io/kubernetes/cmd/kubelet/app"
)

// The earlier minor release (../kubernetes_previous) has a function without an argument.
func newKubelet() *cobra.Command { return app.NewKubeletCommand() }
