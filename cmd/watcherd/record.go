package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/admin/client"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/ui"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

// Exit codes of record in addition to the command's own, as other programs that run one have them.
const (
	exitRecord    = 125 // watcherd failed
	exitNoStart   = 126 // the command cannot be started
	exitNotFound  = 127
	exitSignalled = 128 // and the number of the signal that ended the command
)

// exitError is an exit code. err, which is reported, may be nil.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return fmt.Sprint(e.err) }
func (e *exitError) Unwrap() error { return e.err }

type recordOptions struct {
	kube       kubeFlags
	dir        string
	resources  []string
	exclude    []string
	namespaces []string
	ready      time.Duration
	linger     time.Duration

	stdin          io.Reader
	stdout, stderr io.Writer
	code           int // of the command
}

// The files of a recording.
const (
	recordedStore   = "store"
	recordedConfig  = "watcherd.yaml"
	recordedLog     = "watcherd.log"
	recordedChanges = "changes.json"
	recordedPage    = "recording.html"
)

// recordKeyEnv has the key of the redaction hashes, which is not kept.
const recordKeyEnv = "WATCHERD_RECORD_KEY"

func newRecordCommand() *cobra.Command {
	var o recordOptions
	cmd := &cobra.Command{
		Use:   "record --out DIR [flags] -- COMMAND [ARGUMENT]...",
		Short: "Record everything that changes in the cluster while a command runs",
		Long: "Record runs a command and records every change of every resource that can be listed and watched: a flight\n" +
			"recorder for tests. It needs no configuration and no daemon. Values of Secrets and of environment variables are\n" +
			"hashed. history, diff, blame, changes and get read the recording with --store DIR; changes.json in it has the\n" +
			"net changes, and recording.html shows them in a browser. The exit code is that of the command, 128 and the signal's number if one ended it, 126 or 127 if it\n" +
			"cannot be started, and 125 if watcherd fails. Signals are forwarded to the command.",
		Example: "  watcherd record --out recording -- go test ./e2e\n  watcherd record --out /tmp/rollout -n prod -- kubectl -n prod rollout restart deploy web\n  watcherd history pods --store recording",
		Args:    cobra.MinimumNArgs(1),
		RunE:    o.run,
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	flags.StringVar(&o.dir, "out", "", "folder to make for the recording (required)")
	mustMark(cmd.MarkFlagRequired("out"))
	mustMark(cmd.MarkFlagDirname("out"))
	flags.StringSliceVar(&o.resources, "resource", []string{"*"}, "resources to record, as kubectl names them; *.GROUP for a group")
	flags.StringSliceVar(&o.exclude, "exclude", []string{"leases.coordination.k8s.io"}, "resources to leave out of what wildcards match")
	flags.StringSliceVarP(&o.namespaces, "namespace", "n", nil, "only objects of this namespace")
	flags.DurationVar(&o.ready, "watch-timeout", 30*time.Second, "time to wait for all watches: before the command to begin, after it to catch up")
	flags.DurationVar(&o.linger, "linger", 2*time.Second, "time to record after the command has ended, for its consequences")
	o.kube.bind(flags)
	return cmd
}

func (o *recordOptions) run(cmd *cobra.Command, args []string) error {
	o.stdin, o.stdout, o.stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	environ := os.Environ()
	rest, cluster, err := o.kube.load()
	if err != nil {
		return &exitError{exitRecord, err}
	}
	// The command may make a resource, but not the only one; an API server that does not answer may yet.
	if list, err := unserved(cmd.Context(), rest, o.resources); err == nil && len(list) == len(o.resources) {
		return &exitError{exitRecord, errors.Join(list...)}
	}
	if o.dir, err = newFolder(o.dir); err != nil {
		return err
	}
	watch := map[string]any{
		"name": "recording", "resources": o.resources, "excludeResources": o.exclude,
		"redactPresets": []string{config.PresetPodEnv},
	}
	if len(o.namespaces) > 0 {
		watch["namespaces"] = map[string]any{"include": o.namespaces}
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return &exitError{exitRecord, err}
	}
	if err := os.Setenv(recordKeyEnv, hex.EncodeToString(key)); err != nil {
		return &exitError{exitRecord, err}
	}
	file := filepath.Join(o.dir, recordedConfig)
	state, err := temporaryConfig(file, map[string]any{
		"path": filepath.Join(o.dir, recordedStore), "minFree": "64Mi", "retention": map[string]any{"maxAge": "87600h"}, "redactionKey": map[string]any{"env": recordKeyEnv},
	}, watch, nil)
	if err != nil {
		_ = os.Remove(file) // the folder is for the next try
		return err
	}
	logFile, err := os.OpenFile(filepath.Join(o.dir, recordedLog), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return &exitError{exitRecord, err}
	}
	defer logFile.Close()
	log, err := (&logFlags{format: "text", level: "info"}).logger(logFile)
	if err != nil {
		return err
	}
	// A signal ends the command, which ends the recording.
	err = watcherd.Run(context.WithoutCancel(cmd.Context()), watcherd.Options{
		ConfigFile: file, Kinds: kinds.Builtin(), State: state, REST: rest, ClusterName: cluster, Logger: log, Version: version(),
		Foreground: func(ctx context.Context, d watcherd.Local) error {
			return o.record(ctx, cmd.Context(), d, args, environ)
		},
	})
	switch {
	case errors.As(err, new(*exitError)):
		return err
	case err != nil:
		return &exitError{exitRecord, fmt.Errorf("the recording is not complete: %w", err)}
	case o.code != 0:
		return &exitError{code: o.code}
	}
	return nil
}

// newFolder makes a folder, which may be there if it is empty, and returns its full path.
func newFolder(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return "", &exitError{exitRecord, err}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", &exitError{exitRecord, err}
	}
	if len(entries) > 0 {
		return "", &usageError{fmt.Errorf("--out %s: the folder is not empty", dir)}
	}
	return dir, nil
}

// temporaryConfig writes a configuration with one watch, and loads it.
func temporaryConfig(file string, store, watch, more map[string]any) (*watcherd.State, error) {
	c := map[string]any{
		"apiVersion": config.APIVersion, "kind": config.Kind, "store": store, "admin": map[string]any{"listen": ""}, "watches": []any{watch},
	}
	maps.Copy(c, more)
	text, err := yaml.Marshal(c)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		return nil, err
	}
	return watcherd.Load(file, kinds.Builtin())
}

var errInterrupted = &exitError{exitRecord, errors.New("interrupted before the command")}

// record runs the command once the watches have begun. interrupted ends the wait for them.
func (o *recordOptions) record(ctx, interrupted context.Context, d watcherd.Local, args, environ []string) error {
	c := client.NewLocal(d.API)
	ready, cancel := context.WithTimeout(ctx, o.ready)
	defer cancel()
	stop := context.AfterFunc(interrupted, cancel)
	defer stop()
	from, begun, behind, err := o.await(ready, c)
	switch {
	case interrupted.Err() != nil:
		return errInterrupted
	case err != nil:
		return &exitError{exitRecord, err}
	}
	for _, text := range behind {
		fmt.Fprintf(o.stderr, "watcherd: not recorded: %s\n", clean(text))
	}
	fmt.Fprintf(o.stderr, "watcherd: recording %s in %s\n", plural(begun, "resource"), o.dir)
	if err := o.command(interrupted, args, environ); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil // Run has the reason
	case <-time.After(o.linger):
	}
	last, cancel := context.WithTimeout(ctx, o.ready)
	defer cancel()
	caught := d.CatchUp(last)
	var st status.Status
	switch err := c.Get(ctx, "/api/v1/status", nil, &st); {
	case err != nil:
		return err
	case st.Store.Paused:
		return errors.New(pausedWords(&st))
	case caught != nil:
		return fmt.Errorf("the watches have not caught up with the API server: %w", caught)
	}
	return o.summarize(ctx, c, st.Cluster, from, args)
}

// await waits until everything that exists is recorded: all watches have begun, or may not read
// their resource. After the time for that, it is enough that some have. It returns the beginning
// of the recording, the number of watches that have begun, and why the others have not.
func (o *recordOptions) await(ctx context.Context, c *client.Client) (from time.Time, begun int, behind []string, err error) {
	for {
		var st status.Status
		if err := c.Get(context.WithoutCancel(ctx), "/api/v1/status", nil, &st); err != nil {
			return from, 0, nil, err
		}
		begun, behind = 0, nil
		waiting := !st.Applied || st.Undiscovered
		for i := range st.Watches {
			for _, m := range st.Watches[i].Missing {
				waiting = waiting || m.Pending
				behind = append(behind, m.Resource+": "+m.Reason)
			}
			for j := range st.Watches[i].Sources {
				s := &st.Watches[i].Sources[j]
				if s.Synced {
					begun++
					continue
				}
				waiting = waiting || s.State != dynamicfactory.StateForbidden
				behind = append(behind, fmt.Sprintf("%s: %s %s", s.Resource, s.State, s.Message))
			}
		}
		if !waiting && begun > 0 {
			return time.Now(), begun, behind, nil
		}
		from = time.Now()
		select {
		case <-ctx.Done():
			if begun > 0 {
				return from, begun, behind, nil
			}
			reason := st.DiscoveryError
			switch {
			case st.Store.Paused:
				reason = pausedWords(&st)
			case len(behind) > 0:
				reason = behind[0]
			}
			return from, 0, nil, fmt.Errorf("no watch has begun within %s: %s", o.ready, reason)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// between is a query for a period.
func between(from, to time.Time) url.Values {
	return url.Values{"group": {"owner"}, "from": {from.UTC().Format(time.RFC3339Nano)}, "to": {to.UTC().Format(time.RFC3339Nano)}}
}

// command runs the command, with the signals that it would get without watcherd, unless one came
// before.
func (o *recordOptions) command(interrupted context.Context, args, environ []string) error {
	child := exec.Command(args[0], args[1:]...) //nolint:gosec,noctx // the user's own, and signals end it
	child.Stdin, child.Stdout, child.Stderr, child.Env = o.stdin, o.stdout, o.stderr, environ
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if interrupted.Err() != nil {
		return errInterrupted
	}
	if err := child.Start(); err != nil {
		code := exitNoStart
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			code = exitNotFound
		}
		return &exitError{code, err}
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	for {
		select {
		case s := <-signals:
			if (s == os.Interrupt || s == syscall.SIGQUIT) && fromKeyboard() {
				continue // the terminal sends it to the command, too
			}
			_ = child.Process.Signal(s) // unless it has just ended
		case err := <-ended:
			exit, failed := errors.AsType[*exec.ExitError](err)
			if err != nil && !failed {
				return &exitError{exitRecord, err}
			}
			o.code = child.ProcessState.ExitCode()
			if failed && o.code < 0 {
				if w, ok := exit.Sys().(syscall.WaitStatus); ok {
					o.code = exitSignalled + int(w.Signal())
				}
			}
			return nil
		}
	}
}

// recording is the content of changes.json.
type recording struct {
	Command  []string `json:"command"`
	ExitCode int      `json:"exitCode"`
	history.Changes
}

func pausedWords(st *status.Status) string { return "the store is paused: " + st.Store.Reason }

func (o *recordOptions) summarize(ctx context.Context, c *client.Client, cluster string, from time.Time, args []string) error {
	r := recording{Command: args, ExitCode: o.code}
	if err := c.Get(ctx, "/api/v1/changes", between(from, time.Now()), &r.Changes); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(o.dir, recordedChanges), text, 0o600)
	}
	if err == nil {
		err = o.writePage(ctx, c, cluster, &r)
	}
	if err != nil {
		return err
	}
	if err := printChanges(o.stderr, o.stderr, &r.Changes); err != nil || r.Complete || r.Truncated && !missing(&r.Span) {
		return err
	}
	return errors.New("changes of the period may be missing")
}

// What the page of a recording has at most. The folder has everything.
const (
	maxPageVersions = 20 // of an object, the newest
	maxPageBytes    = 16 << 20
)

// writePage writes the page that shows the recording without a daemon.
func (o *recordOptions) writePage(ctx context.Context, c *client.Client, cluster string, r *recording) error {
	page := ui.Recording{Cluster: cluster, Command: r.Command, ExitCode: r.ExitCode, Kinds: map[string]string{}, Answers: map[string]json.RawMessage{}}
	size := 0
	ask := func(path []string, query url.Values) (json.RawMessage, error) {
		escaped := make([]string, len(path))
		for i, segment := range path {
			escaped[i] = url.PathEscape(segment)
		}
		var answer json.RawMessage
		if err := c.Get(ctx, "/api/v1/"+strings.Join(escaped, "/"), query, &answer); err != nil {
			return nil, err
		}
		parts := []string{strings.Join(path, "/")}
		for _, name := range slices.Sorted(maps.Keys(query)) {
			parts = append(parts, name+"="+query.Get(name))
		}
		key := strings.Join(parts, "&")
		page.Answers[key] = answer
		size += len(key) + len(answer)
		return answer, nil
	}
	moment := func(t time.Time) string { return t.Format(time.RFC3339Nano) }
	object := func(n *history.NetChange) error {
		left := false
		defer func() {
			if left {
				page.LeftOut++
			}
		}()
		if size > maxPageBytes {
			left = true
			return nil
		}
		resource := schema.GroupResource{Group: n.Resource.Group, Resource: n.Resource.Resource}.String()
		page.Kinds[schema.GroupKind{Group: n.Resource.Group, Kind: strings.ToLower(n.Resource.Kind)}.String()] = resource
		path := []string{"objects", resource, cmp.Or(n.Namespace, "-"), n.Name}
		// Objects that nest too deep have no difference: see history.Reader.
		diff := func(query url.Values) error {
			_, err := ask(append(path, "diff"), query)
			if errors.As(err, new(*admin.Problem)) {
				left = true
				return nil
			}
			return err
		}
		if err := diff(url.Values{"from": {moment(r.From)}, "to": {moment(r.To)}}); err != nil {
			return err
		}
		answer, err := ask(append(path, "versions"), url.Values{"limit": {"500"}})
		if err != nil {
			return err
		}
		var versions history.Versions
		if err := json.Unmarshal(answer, &versions); err != nil {
			return err
		}
		for i, v := range versions.Items {
			if i > maxPageVersions || size > maxPageBytes {
				left = true
				break
			}
			version := url.Values{"version": {strconv.FormatUint(v.Sequence, 10)}}
			if _, err := ask(path, version); err != nil {
				return err
			}
			if err := diff(version); err != nil {
				return err
			}
			if v.Time.Before(r.From) {
				break // the state before the command
			}
		}
		return nil
	}
	text, err := json.Marshal(r.Changes)
	if err != nil {
		return err
	}
	page.Answers["changes"] = text
	for i := range r.Groups {
		g := &r.Groups[i]
		if g.Change != nil {
			if err := object(g.Change); err != nil {
				return err
			}
		}
		for j := range g.Items {
			if err := object(&g.Items[j]); err != nil {
				return err
			}
		}
	}
	f, err := os.OpenFile(filepath.Join(o.dir, recordedPage), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = page.WriteTo(f)
	return errors.Join(err, f.Close())
}

// storeFlag reads a store in place of asking a daemon.
type storeFlag struct{ dir string }

func (f *storeFlag) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "store", "", "read this recording, or the store of a daemon that does not run, in place of asking a daemon")
	mustMark(cmd.MarkFlagDirname("store"))
}

// reading runs a command with a client of the store, if that is asked for.
func (f *storeFlag) reading(to *adminFlags, run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if f.dir == "" {
			return run(cmd, args)
		}
		if slices.ContainsFunc([]string{"admin", "config"}, cmd.Flags().Changed) {
			return &usageError{errors.New("--store excludes --admin and --config")}
		}
		dir := f.dir
		if inner := filepath.Join(dir, recordedStore); isFolder(inner) {
			dir = inner
		}
		log, err := (&logFlags{format: "text", level: "error"}).logger(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		_, until, err := f.period()
		if err != nil {
			return err
		}
		return watcherd.ReadStore(cmd.Context(), dir, until, log, func(ctx context.Context, api http.RoundTripper) error {
			cmd.SetContext(ctx)
			to.local = api
			return run(cmd, args)
		})
	}
}

// period is the time that a recording is of; zero if the folder is none.
func (f *storeFlag) period() (from, to time.Time, err error) {
	if f.dir == "" {
		return from, to, nil
	}
	text, err := os.ReadFile(filepath.Join(f.dir, recordedChanges))
	if errors.Is(err, fs.ErrNotExist) {
		return from, to, nil
	}
	var r recording
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return from, to, fmt.Errorf("the period of the recording: %w", err)
	}
	return r.From, r.To, nil
}

func isFolder(path string) bool {
	info, err := os.Stat(strings.TrimSuffix(path, "/"))
	return err == nil && info.IsDir()
}
