package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log" //nolint:depguard // to redirect it
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/admin/client"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

const defaultAdmin = "http://127.0.0.1:8080"

// adminFlags say where the daemon's admin listener is and how to be let in.
type adminFlags struct {
	url, config, tokenFile    string
	caFile, certFile, keyFile string

	local http.RoundTripper // to a server in this process; nil: none
}

func (f *adminFlags) bind(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVarP(&f.config, "config", "c", "", "the daemon's configuration file, to find its admin listener (default: ./"+defaultConfig+" if it is there)")
	f.bindAccess(cmd)
}

// bindAccess adds the flags for a command with a --config of its own.
func (f *adminFlags) bindAccess(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.url, "admin", "", "URL of the daemon's admin listener (default: that of the configuration, or "+defaultAdmin+")")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the bearer token (default: that of admin.auth of the configuration, for reading or for commands)")
	flags.StringVar(&f.caFile, "ca-file", "", "authority that signed the admin listener's certificate")
	flags.StringVar(&f.certFile, "cert-file", "", "client certificate")
	flags.StringVar(&f.keyFile, "key-file", "", "key of the client certificate")
}

func (f *adminFlags) client() (*client.Client, error) {
	if f.local != nil {
		return client.NewLocal(f.local), nil
	}
	base, tokens := f.url, client.Tokens{ReadFile: f.tokenFile, CommandFile: f.tokenFile}
	settings, err := f.settings()
	if err != nil {
		return nil, err
	}
	if settings != nil {
		if base == "" {
			if settings.Listen == "" {
				return nil, fmt.Errorf("%s has no admin listener (admin.listen is empty), so its daemon cannot be asked", f.config)
			}
			if base, err = urlOf(settings.Listen, settings.TLS != nil); err != nil {
				return nil, err
			}
		}
		if f.tokenFile == "" && settings.Auth != nil {
			read, command := settings.Auth.ReadTokenFile, settings.Auth.CommandTokenFile
			tokens = client.Tokens{ReadFile: cmp.Or(read, command), CommandFile: cmp.Or(command, read)}
		}
	}
	base = cmp.Or(base, defaultAdmin)
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, &usageError{fmt.Errorf("--admin %q: use http://HOST:PORT or https://HOST:PORT", base)}
	}
	if (f.certFile == "") != (f.keyFile == "") {
		return nil, &usageError{errors.New("--cert-file and --key-file go together")}
	}
	tlsConfig, err := sinks.TLS{CAFile: f.caFile, CertFile: f.certFile, KeyFile: f.keyFile}.Load()
	if err != nil {
		return nil, err
	}
	return client.New(base, tokens, tlsConfig), nil
}

// settings are those of the admin listener in the daemon's configuration: that of --config, or
// ./watcherd.yaml, which is what run takes. Nil without either. A file that is not valid counts
// if its errors are elsewhere: the daemon runs what the file was before, or has kinds of sinks that
// this program does not know. A file that was not asked for and that does not have a listener
// does not count: the daemon may run another one.
func (f *adminFlags) settings() (*config.Admin, error) {
	if f.config == "" && f.url != "" {
		return nil, nil //nolint:nilnil // there is none
	}
	cfg, err := config.Load(cmp.Or(f.config, defaultConfig), watcherd.Blocks(kinds.Builtin()))
	if found, ok := errors.AsType[*config.Errors](err); ok && found.Partial() != nil && !slices.ContainsFunc(found.List, aboutAdmin) {
		cfg, err = found.Partial(), nil
	}
	switch found := err == nil && cfg.Admin.Listen != ""; {
	case f.config == "" && !found:
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		_, err = watcherd.Load(f.config, kinds.Builtin()) // its error is that of run
		return nil, err
	}
	return &cfg.Admin, nil
}

func aboutAdmin(e *config.Error) bool {
	return e.Path == "admin" || strings.HasPrefix(e.Path, "admin.")
}

// now returns a function that asks once for the time by the daemon's clock, which its records have.
func (f *adminFlags) now(ctx context.Context) func() (time.Time, error) {
	return sync.OnceValues(func() (time.Time, error) {
		c, err := f.client()
		if err != nil {
			return time.Time{}, err
		}
		return c.Now(ctx)
	})
}

// get reads an answer of the daemon.
func (f *adminFlags) get(ctx context.Context, path string, query url.Values, out any) error {
	c, err := f.client()
	if err != nil {
		return err
	}
	return c.Get(ctx, path, query, out)
}

// post sends the daemon a command and reads its answer.
func (f *adminFlags) post(ctx context.Context, path string, in, out any) error {
	c, err := f.client()
	if err != nil {
		return err
	}
	return c.Post(ctx, path, in, out)
}

// urlOf is how to reach an address to listen on from this machine.
func urlOf(listen string, secure bool) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("admin.listen: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

func addSinkFlag(flags *pflag.FlagSet, sink *string) {
	flags.StringVar(sink, "sink", "", "name of the sink (required)")
	mustMark(cobra.MarkFlagRequired(flags, "sink"))
}

// mustMark is for what only fails if a flag is not defined.
func mustMark(err error) {
	if err != nil {
		panic(fmt.Sprintf("mark flag: %v", err))
	}
}

// kubeFlags choose the cluster as kubectl does: --kubeconfig, KUBECONFIG,
// ~/.kube/config, or the pod's own service account.
type kubeFlags struct {
	kubeconfig, context string
}

func (f *kubeFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG, ~/.kube/config, or the pod's service account)")
	flags.StringVar(&f.context, "context", "", "context of the kubeconfig to use")
}

// load returns how to reach the cluster, and the kubeconfig's name for it.
func (f *kubeFlags) load() (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context})
	cfg, err := loader.ClientConfig()
	if errors.Is(err, rest.ErrNotInCluster) || clientcmd.IsEmptyConfig(err) {
		if files := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); files != "" {
			return nil, "", fmt.Errorf("KUBECONFIG names no file with a cluster: %s", files)
		}
		return nil, "", errors.New("no cluster is configured: set --kubeconfig or KUBECONFIG, create ~/.kube/config, or run inside a cluster")
	}
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: %w", err)
	}
	if _, err := rest.TLSConfigFor(cfg); err != nil {
		return nil, "", fmt.Errorf("kubeconfig: %w", err)
	}
	cfg = dynamicfactory.Guarded(cfg)
	cfg.UserAgent = "watcherd/" + version()
	raw, err := loader.RawConfig()
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: %w", err)
	}
	name := cmp.Or(f.context, raw.CurrentContext)
	if c, ok := raw.Contexts[name]; ok && c.Cluster != "" {
		return cfg, c.Cluster, nil
	}
	return cfg, "in-cluster", nil
}

type logFlags struct{ format, level string }

func (f *logFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.format, "log-format", "text", "text or json")
	flags.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
}

// logger makes the daemon's logger and sends through it the messages of client-go and of the standard library.
func (f *logFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return nil, &usageError{fmt.Errorf("--log-level %q: use debug, info, warn or error", f.level)}
	}
	opts := &slog.HandlerOptions{Level: level}
	var h slog.Handler
	switch f.format {
	case "text":
		h = slog.NewTextHandler(w, opts)
	case "json":
		h = slog.NewJSONHandler(w, opts)
	default:
		return nil, &usageError{fmt.Errorf("--log-format %q: use text or json", f.format)}
	}
	klog.SetLogger(logr.FromSlogHandler(unended{h}))
	log.SetFlags(0)
	log.SetOutput(unquoting{slog.NewLogLogger(h, slog.LevelWarn).Writer()})
	return slog.New(h), nil
}

// unended leaves out messages of client-go about requests that watcherd itself has ended.
type unended struct{ slog.Handler }

func (u unended) Handle(ctx context.Context, r slog.Record) error {
	ended := false
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		ended = ok && errors.Is(err, context.Canceled)
		return !ended
	})
	if ended {
		return nil
	}
	return u.Handler.Handle(ctx, r)
}

func (u unended) WithAttrs(attrs []slog.Attr) slog.Handler {
	return unended{u.Handler.WithAttrs(attrs)}
}

func (u unended) WithGroup(name string) slog.Handler { return unended{u.Handler.WithGroup(name)} }

// unquoting leaves out of a message of the standard library what a receiver has sent unasked, which may hold a secret of the request.
type unquoting struct{ io.Writer }

func (w unquoting) Write(line []byte) (int, error) {
	const unsolicited = "Unsolicited response received on idle HTTP channel"
	if bytes.HasPrefix(line, []byte(unsolicited)) {
		_, err := io.WriteString(w.Writer, unsolicited+"\n")
		return len(line), err
	}
	return w.Writer.Write(line)
}
