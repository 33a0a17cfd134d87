// Command watcherd is change data capture for Kubernetes: it watches the
// resources that a configuration names and delivers every change, described
// exactly once, to webhooks, NATS, files and more.
//
// The package is larger than others: it has a file for each group of commands, and nothing
// imports it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/watcherd"
)

// Exit codes; users and scripts rely on them.
const (
	exitOK        = 0
	exitFailed    = 1
	exitUsage     = 2
	exitStore     = 3
	exitStoreOpen = 4
)

func main() { os.Exit(realMain()) }

// realMain returns instead of exiting, so that deferred calls run.
func realMain() int {
	// The second signal ends the process at once: NotifyContext stops catching
	// them when the first has come.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// run is the whole program with its surroundings as arguments.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRootCommand(stdout, stderr) //nolint:contextcheck // commands get it from ExecuteContext
	root.SetArgs(args)
	began := noteBeginning(root)
	err := root.ExecuteContext(ctx)
	if err != nil && !*began {
		err = &usageError{wordsOf(err)}
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) && !errors.As(err, new(*exitError)) {
		err = errors.New("interrupted")
	}
	if exit, ok := errors.AsType[*exitError](err); err != nil && (!ok || exit.err != nil) {
		fmt.Fprintf(stderr, "watcherd: %s\n", cleanLines(err.Error()))
	}
	return exitCode(err)
}

// noteBeginning makes known whether a command got as far as doing anything: errors
// before that are of the command line.
func noteBeginning(root *cobra.Command) *bool {
	began := new(bool)
	for _, c := range allCommands(root) {
		if do := c.RunE; do != nil {
			c.RunE = func(cmd *cobra.Command, args []string) error {
				*began = true
				return do(cmd, args)
			}
		}
	}
	return began
}

func allCommands(c *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		list = append(list, allCommands(sub)...)
	}
	return list
}

func exitCode(err error) int {
	var usage *usageError
	var exit *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(err, watcherd.ErrConfig), errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, watcherd.ErrStoreOpen):
		return exitStoreOpen
	case errors.Is(err, watcherd.ErrStore):
		return exitStore
	default:
		return exitFailed
	}
}

// usageError is a command line that cannot be understood.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

var requiredFlags = regexp.MustCompile(`^required flag\(s\) "(.+)" not set$`)

// wordsOf is an error of the command line in the words of those of the commands.
func wordsOf(err error) error {
	if m := requiredFlags.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("--%s is required", strings.ReplaceAll(m[1], `", "`, " and --"))
	}
	if strings.HasPrefix(err.Error(), "unknown command ") && !strings.Contains(err.Error(), "\n") && !strings.Contains(err.Error(), "--help") {
		return fmt.Errorf("%w; see 'watcherd --help'", err)
	}
	return err
}

// valueWords is what the value of a flag of a type is, empty if it has an error of its own.
func valueWords(flagType string) string {
	switch flagType {
	case "int", "uint":
		return "a whole number"
	case "duration":
		return "a duration, such as 500ms, 30s or 5m"
	case "bool":
		return "true or false"
	}
	return ""
}

// Groups of commands in the help.
const (
	groupRun = "run"
	groupAsk = "ask"
)

func newRootCommand(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "watcherd",
		Short:         "Change data capture for Kubernetes",
		Long:          "watcherd watches the configured Kubernetes resources and delivers every change,\ndescribed exactly once and never lost, to webhooks, NATS, files and more.",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
			if words := valueWords(invalid.GetFlag().Value.Type()); words != "" {
				err = fmt.Errorf("--%s %q is not %s", invalid.GetFlag().Name, invalid.GetValue(), words)
			}
		}
		return &usageError{fmt.Errorf("%w; see '%s --help'", err, cmd.CommandPath())}
	})
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Run and check:"},
		&cobra.Group{ID: groupAsk, Title: "Ask and command a running daemon:"},
	)
	for _, c := range []*cobra.Command{newInitCommand(), newRunCommand(), newValidateCommand(), newBodyCommand(), newRBACCommand(), newSchemaCommand(), newSinktestCommand(), newStoreCommand(), newRecordCommand(), newWatchCommand()} {
		c.GroupID = groupRun
		root.AddCommand(c)
	}
	for _, c := range []*cobra.Command{
		newStatusCommand(), newUICommand(), newGetCommand(), newTailCommand(), newHistoryCommand(), newDiffCommand(), newBlameCommand(), newChangesCommand(), newExplainCommand(), newBacktestCommand(),
		newReplayCommand(), newSnapshotCommand(), newDeadLettersCommand(), newSinksCommand(), newReloadCommand(),
	} {
		c.GroupID = groupAsk
		root.AddCommand(c)
	}
	root.AddCommand(newVersionCommand())
	for _, c := range allCommands(root) {
		if c.RunE != nil {
			checkArgs(c)
		}
	}
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.RunE = helpOnly
			checkArgs(c)
		}
	}
	addCompletions(root)
	// Cobra's own flag prints a sentence; its template would link text/template, and with that a third more program.
	printVersion := root.Flags().Bool("version", false, "print the version")
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if *printVersion {
			return runVersion(cmd, args)
		}
		return helpOnly(cmd, args)
	}
	return root
}

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

// commit is the source's revision, as the Go toolchain recorded it.
func commit() string {
	revision, modified := "unknown", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = short(s.Value)
			case s.Key == "vcs.modified" && s.Value == "true":
				modified = "+modified"
			}
		}
	}
	return revision + modified
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, the Go release and the platform",
		RunE:  runVersion,
	}
}

func runVersion(cmd *cobra.Command, _ []string) error {
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "watcherd %s, commit %s, %s, %s/%s\n", version(), commit(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

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
