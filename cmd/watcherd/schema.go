package main

import (
	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/config"
)

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration",
		Long: `Print the JSON Schema of the configuration.

Editors that have the YAML language server complete and check a configuration whose
first line names the schema:

  # yaml-language-server: $schema=watcherd.schema.json`,
		Example: "  watcherd schema > watcherd.schema.json",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(config.Schema())
			return err
		},
	}
}
