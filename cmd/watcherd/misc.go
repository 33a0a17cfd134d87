package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/pkg/watcherd"
)

// release is the version that a release build stamps in with -ldflags -X.
var release string

// version is the release, or what the Go toolchain recorded of the source.
func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version())
			return err
		},
	}
}

func newValidateCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:     "validate --config FILE",
		Short:   "Check a configuration",
		Long:    "Validate reports everything that is wrong with a configuration, each with its place in the file.",
		Example: "  watcherd validate --config watcherd.yaml",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := watcherd.Load(file, watcherd.Kinds())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: %d watches, %d sinks\n", display(file), len(st.Watches), len(st.Sinks))
			return err
		},
	}
	addConfigFlag(cmd, &file)
	return cmd
}
