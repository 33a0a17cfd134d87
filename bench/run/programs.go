package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// binaries are the programs, built for the run.
type binaries struct{ watcherd, baseline, replayd, nats string }

func build(ctx context.Context, dir string, profile bool) (binaries, error) {
	daemon := "./cmd/watcherd"
	if profile {
		daemon = "./bench/profiled"
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", daemon, "./bench/baseline", "./bench/replayd", natsServer)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return binaries{}, fmt.Errorf("build the programs (run it in the repository's root): %w", err)
	}
	at := func(pkg string) string { return filepath.Join(dir, filepath.Base(pkg)) }
	return binaries{watcherd: at(daemon), baseline: at("baseline"), replayd: at("replayd"), nats: at("nats-server")}, nil
}

const natsServer = "github.com/nats-io/nats-server/v2"

// contender is a program and how it is set up.
type contender struct {
	name     string
	baseline bool
	old      bool   // the state before an update is written too
	journal  string // of the configuration; "" for none
}

func (b *binaries) start(c contender, dir, kubeconfig, resource, namespace string, each bool) (*process, error) {
	if c.baseline {
		args := []string{"-kubeconfig", kubeconfig, "-resource", resource, "-namespace", namespace, "-out", outFile}
		if c.old {
			args = append(args, "-old")
		}
		if each {
			args = append(args, "-flush", "0")
		}
		return start(dir, b.baseline, args...)
	}
	if err := os.WriteFile(filepath.Join(dir, "watcherd.yaml"), []byte(config(c, resource, namespace)), 0o600); err != nil {
		return nil, err
	}
	args := []string{"run", "--config", "watcherd.yaml", "--kubeconfig", kubeconfig}
	if filepath.Base(b.watcherd) == "profiled" {
		args = []string{"-config", "watcherd.yaml", "-kubeconfig", kubeconfig}
	}
	return start(dir, b.watcherd, args...)
}

// outFile is what every program writes its events to.
const outFile = "events.jsonl"

// config is watcherd's configuration: defaults but for what the measurement is about.
func config(c contender, resource, namespace string) string {
	payload, namespaces := "[object]", ""
	if c.old {
		payload = "[object, oldObject]"
	}
	store := "{path: ./store}"
	if c.journal != "" {
		store = "{path: ./store, journal: " + c.journal + "}"
	}
	if namespace != "" {
		namespaces = "\n  namespaces: {include: [" + namespace + "]}"
	}
	return fmt.Sprintf(`apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: bench}
store: %s
admin: {listen: "127.0.0.1:0"}
watches:
- name: all
  resources: [%s]%s
routes:
- {name: all, payload: %s, sinks: [out]}
sinks:
- name: out
  file: {path: ./%s}
`, store, resource, namespaces, payload, outFile)
}

// replay is a running replay server.
type replay struct {
	*process
	url, kubeconfig string
}

func (b *binaries) startReplay(ctx context.Context, dir string, pods int) (*replay, error) {
	p, err := start(dir, b.replayd, "-pods", fmt.Sprint(pods))
	if err != nil {
		return nil, err
	}
	r := &replay{process: p, kubeconfig: filepath.Join(dir, "kubeconfig")}
	err = p.await(ctx, "its URL", func() (bool, error) {
		_, rest, ok := strings.Cut(p.log.String(), "ready ")
		line, _, whole := strings.Cut(rest, "\n")
		r.url = line
		return ok && whole, nil
	})
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: bench
clusters: [{name: bench, cluster: {server: %q}}]
users: [{name: bench, user: {}}]
contexts: [{name: bench, context: {cluster: bench, user: bench}}]
`, r.url)
	return r, os.WriteFile(r.kubeconfig, []byte(text), 0o600)
}

// updates has the server send updates, so many a second, 0 for full speed.
func (r *replay) updates(ctx context.Context, n, rate int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/_start?events=%d&rate=%d", r.url, n, rate), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the replay server answers %s", resp.Status)
	}
	return nil
}

// requests returns how often the server was asked, by verb and path.
func (r *replay) requests(ctx context.Context) (map[string]int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/_stats", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var s struct{ Requests map[string]int }
	return s.Requests, json.NewDecoder(resp.Body).Decode(&s)
}

// counter counts the lines of a file that grows.
type counter struct {
	path  string
	at    int64
	lines int
	buf   []byte
}

func newCounter(path string) *counter { return &counter{path: path, buf: make([]byte, 1<<20)} }

// count returns how many whole lines there are.
func (c *counter) count() (int, error) {
	f, err := os.Open(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for {
		n, err := f.ReadAt(c.buf, c.at)
		c.at += int64(n)
		c.lines += bytes.Count(c.buf[:n], []byte("\n"))
		if errors.Is(err, io.EOF) {
			return c.lines, nil
		}
		if err != nil {
			return c.lines, err
		}
	}
}

// awaitLines returns when the program has written so many lines.
func (p *process) awaitLines(ctx context.Context, c *counter, want int) error {
	err := p.await(ctx, fmt.Sprintf("%d lines", want), func() (bool, error) {
		got, err := c.count()
		return got >= want, err
	})
	if err == nil && c.lines > want {
		return fmt.Errorf("%s wrote %d lines, want %d", p.name, c.lines, want)
	}
	return err
}
