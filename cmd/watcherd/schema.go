package main

import (
	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/pkg/event"
)

func newSchemaCommand() *cobra.Command {
	var events bool
	cmd := &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration, or of events",
		Long: `Print the JSON Schema of the configuration, or with --event that of the events, which
their attribute dataschema names.

Editors that have the YAML language server complete and check a configuration whose
first line names the schema:

  # yaml-language-server: $schema=watcherd.schema.json`,
		Example: "  watcherd schema > watcherd.schema.json\n  watcherd schema --event",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			document := config.Schema()
			if events {
				document = event.Schema()
			}
			_, err := cmd.OutOrStdout().Write(document)
			return err
		},
	}
	cmd.Flags().BoolVar(&events, "event", false, "the schema of events")
	return cmd
}
