//go:build !previous

package main

import (
	"context"

	"github.com/spf13/cobra"
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func newKubelet() *cobra.Command { return app.NewKubeletCommand(context.Background()) }
