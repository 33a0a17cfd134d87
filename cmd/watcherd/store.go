package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/internal/standby"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/store/inspect"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

// storeFlags say where the store is.
type storeFlags struct{ dir, config string }

func (f *storeFlags) path() (string, error) {
	if f.dir != "" {
		return f.dir, nil
	}
	if _, err := os.Stat(defaultConfig); f.config == "" && errors.Is(err, fs.ErrNotExist) {
		return "", &usageError{fmt.Errorf("there is no ./%s: name the store with --store DIR or --config FILE", defaultConfig)}
	}
	st, err := watcherd.Load(cmp.Or(f.config, defaultConfig), kinds.Builtin())
	if err != nil {
		return "", err
	}
	return st.Store.Path, nil
}

func newStoreCommand() *cobra.Command {
	var flags storeFlags
	cmd := &cobra.Command{
		Use: "store", Short: "Check, export or adopt the store of a stopped daemon, or back up that of a running one",
		RunE: helpOnly,
	}
	for _, stopped := range []*cobra.Command{newStoreCheckCommand(&flags), newStoreExportCommand(&flags), newStoreAdoptCommand(&flags)} {
		stopped.Flags().StringVar(&flags.dir, "store", "", "folder of the store")
		stopped.Flags().StringVarP(&flags.config, "config", "c", "", "configuration file, to find the store (default: ./"+defaultConfig+")")
		cmd.AddCommand(stopped)
	}
	cmd.AddCommand(newStoreBackupCommand())
	return cmd
}

func newStoreBackupCommand() *cobra.Command {
	var flags adminFlags
	cmd := &cobra.Command{
		Use:   "backup DIR",
		Short: "Copy the store of a running daemon to a new folder",
		Long: "Backup copies the store of a running daemon, as of one moment, to a new folder on the daemon's host, and checks the\n" +
			"copy. Ledger, history, queues and dead letters are in it: treat it as you treat the cluster's data. On the store's\n" +
			"own filesystem it has links to the store's files: copy it away from there.",
		Example: "  watcherd store backup /backup/watcherd-2026-01-31",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			client, err := flags.client()
			if err != nil {
				return err
			}
			last, err := client.Run(cmd.Context(), "/api/v1/backup", admin.BackupRequest{Dir: dir}, func(int) {})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "backup of %s in %s, checked\n", plural(last.Count, "event"), dir)
			return err
		},
	}
	flags.bind(cmd)
	return cmd
}

func newStoreCheckCommand(flags *storeFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "check [--store DIR | --config FILE]",
		Short:   "Read the whole store and report damage",
		Long:    "Check reads and cross-checks everything in the store. It changes nothing. The daemon must be stopped.",
		Example: "  watcherd store check\n  watcherd store check --store /backup/watcherd-2026-01-31",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := flags.path()
			if err != nil {
				return err
			}
			report, err := inspect.Check(dir)
			if err != nil {
				return fmt.Errorf("%w: %w", watcherd.ErrStoreOpen, err)
			}
			if err := printReport(cmd.OutOrStdout(), dir, &report); err != nil {
				return err
			}
			if !report.OK() {
				return fmt.Errorf("the store in %s is damaged: 'watcherd store export' saves what can be read", dir)
			}
			return nil
		},
	}
}

func newStoreAdoptCommand(flags *storeFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "adopt [--store DIR | --config FILE]",
		Short: "Have the store of a stopped replica begin a new journal",
		Long: "Adopt is for replicas that refuse to run because their stores and the journal have different pasts, as after servers\n" +
			"that lost what they had confirmed. The replica whose store is kept (watcherd store check prints how far each is) begins\n" +
			"a new journal at its next start. The folders of the others must be removed: these replicas are seeded then. All replicas must be stopped.",
		Example: "  watcherd store adopt --config watcherd.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := flags.path()
			if err == nil {
				err = standby.Adopt(dir)
			}
			if err != nil {
				return fmt.Errorf("%w: %w", watcherd.ErrStoreOpen, err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "the store in %s begins a new journal at the next start; remove those of the other replicas, which are seeded then\n", clean(dir))
			return err
		},
	}
}

func printReport(w io.Writer, dir string, r *inspect.Report) error {
	fmt.Fprintf(w, "store    %s, layout %d, %s\n", clean(dir), r.Layout, plural(r.Files, "file"))
	fmt.Fprintf(w, "log      %s, %s, sequences %d to %d\n", plural(int(r.Records), "event"), size(r.RecordBytes), r.First, r.Last)
	objects, bytes := int64(0), int64(0)
	for _, p := range r.Partitions {
		objects += p.Entries
		bytes += p.Bytes
	}
	fmt.Fprintf(w, "ledger   %s, %s, of %s\n", plural(int(objects), "object"), size(bytes), plural(len(r.Partitions), "resource"))
	if j := r.Journal; j.Last > 0 {
		fmt.Fprintf(w, "journal  up to sequence %d of the stream, term %d\n", j.Last, j.Term)
	}
	for _, q := range r.Queues {
		fmt.Fprintf(w, "sink     %s: %d queued (%s), %s\n", clean(q.Sink), q.Length, size(q.Bytes), plural(int(q.DeadLetters), "dead letter"))
	}
	for _, d := range r.Damaged {
		fmt.Fprintf(w, "damaged  %s: %s\n", clean(d.File), clean(d.Err))
	}
	for _, p := range r.Problems {
		fmt.Fprintf(w, "problem  %s\n", clean(p))
	}
	if r.OK() {
		fmt.Fprintln(w, "no damage found")
	}
	return nil
}

func newStoreExportCommand(flags *storeFlags) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "export [--store DIR | --config FILE]",
		Short: "Write everything that can be read from the store as JSON lines",
		Long: "Export writes log records, queues, dead letters, ledger and metadata as JSON lines, payloads as base64, also of a\n" +
			"store that is damaged. It changes nothing. The daemon must not run. The output holds everything the daemon\n" +
			"recorded except what the last accepted configuration drops or redacts; the key of the hashes that stand for\n" +
			"redacted values is not in it: treat it as you treat the cluster's data.",
		Example: "  watcherd store export --store ./watcherd-data --output dump.jsonl",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := flags.path()
			if err != nil {
				return err
			}
			if _, err := os.Stat(dir); err != nil {
				return fmt.Errorf("%w: %w", watcherd.ErrStoreOpen, err)
			}
			if output == "" || output == "-" {
				return exportError(query.Export(dir, cmd.OutOrStdout()))
			}
			return exportFile(cmd, dir, output)
		},
	}
	cmd.Flags().StringVar(&output, "output", "", "file to write, which must not exist (default: standard output)")
	return cmd
}

func exportFile(cmd *cobra.Command, dir, output string) (err error) {
	f, err := os.OpenFile(filepath.Clean(output), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := &countingWriter{w: f, progress: newProgress(cmd.ErrOrStderr())}
	defer w.progress.clear()
	return exportError(query.Export(dir, w))
}

// exportError distinguishes a store that cannot be opened from a full disk.
func exportError(err error) error {
	if errors.Is(err, store.ErrLocked) || errors.Is(err, store.ErrNewerFormat) || errors.Is(err, store.ErrDamaged) {
		return fmt.Errorf("%w: %w", watcherd.ErrStoreOpen, err)
	}
	return err
}

// countingWriter shows how much was written, at every further 64 MiB.
type countingWriter struct {
	w        io.Writer
	n, shown int64
	progress *progress
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	if c.n-c.shown >= 64<<20 {
		c.shown = c.n
		c.progress.show(size(c.n))
	}
	return n, err
}
