package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/watcherd/watcherd/playground/internal/statedir"
)

const (
	startLimit = 30 * time.Second
	// A unix socket's path must fit into sockaddr_un: 108 bytes on Linux, 104
	// on macOS, the final zero included.
	maxSocketPath = 103
)

// Options of a server. The zero value is fit for tests.
type Options struct {
	Fsync      bool  // survive a crash of the machine, not only of the process
	QuotaBytes int64 // largest size of the database; 0: 8 GiB
}

// Server is a running etcd.
type Server struct {
	etcd      *embed.Etcd
	url       string
	layout    statedir.Layout
	socketDir string // to be removed at the end; empty when it is the state directory
}

// Start runs etcd on the data in the state directory, which the caller has
// locked, and returns when it serves.
func Start(ctx context.Context, layout statedir.Layout, o Options) (*Server, error) {
	s := &Server{layout: layout}
	sockets, err := s.chooseSocketDir()
	if err != nil {
		return nil, err
	}
	client := url.URL{Scheme: "unix", Path: filepath.Join(sockets, clientSocket)}
	peer := url.URL{Scheme: "unix", Path: filepath.Join(sockets, peerSocket)}
	s.url = client.String()

	cfg := embed.NewConfig()
	cfg.Name = "playground"
	cfg.Dir = layout.Etcd()
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = !o.Fsync
	cfg.QuotaBackendBytes = o.QuotaBytes
	if cfg.QuotaBackendBytes == 0 {
		cfg.QuotaBackendBytes = 8 << 30
	}
	cfg.LogLevel = "warn"
	cfg.LogOutputs = []string{layout.EtcdLog()}
	// A single member elects itself: no reason to wait a second for it.
	cfg.TickMs, cfg.ElectionMs = 10, 100

	if s.etcd, err = embed.StartEtcd(cfg); err != nil {
		return nil, errors.Join(err, s.removeSockets())
	}
	if err := s.ready(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := os.WriteFile(layout.EtcdEndpoint(), []byte(s.url), 0o600); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) ready(ctx context.Context) error {
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	select {
	case <-s.etcd.Server.ReadyNotify():
		return nil
	case err := <-s.etcd.Err():
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-limit.C:
		return fmt.Errorf("not ready after %s", startLimit)
	}
}

// URL is the client endpoint.
func (s *Server) URL() string { return s.url }

// Close stops the server and returns when it is gone.
func (s *Server) Close() error {
	s.etcd.Close()
	return errors.Join(s.removeSockets(), removeIfExists(s.layout.EtcdEndpoint()))
}

const (
	clientSocket    = "etcd.sock"
	peerSocket      = "peer.sock"
	socketDirPrefix = "pg-"
)

// chooseSocketDir is the state directory, unless its path is too long for a unix
// socket, as the temporary directories of tests with long names are: then it is
// a new folder of its own.
func (s *Server) chooseSocketDir() (string, error) {
	if err := removeStale(s.layout); err != nil {
		return "", err
	}
	if len(filepath.Join(s.layout.Root, clientSocket)) <= maxSocketPath {
		return s.layout.Root, nil
	}
	dir, err := os.MkdirTemp("", socketDirPrefix)
	if err != nil {
		return "", err
	}
	s.socketDir = dir
	if path := filepath.Join(dir, clientSocket); len(path) > maxSocketPath {
		return "", errors.Join(
			fmt.Errorf("%q is too long for a unix socket: choose a shorter --dir or TMPDIR", path), s.removeSockets())
	}
	return dir, nil
}

func (s *Server) removeSockets() error {
	if s.socketDir == "" {
		return nil
	}
	return os.RemoveAll(s.socketDir)
}

// removeStale removes the socket folder of a server that was killed.
func removeStale(layout statedir.Layout) error {
	b, err := os.ReadFile(layout.EtcdEndpoint())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	u, err := url.Parse(string(b))
	if err != nil {
		return fmt.Errorf("%s: %w", layout.EtcdEndpoint(), err)
	}
	if dir := filepath.Dir(u.Path); dir != layout.Root && strings.HasPrefix(filepath.Base(dir), socketDirPrefix) {
		if err := os.RemoveAll(dir); err != nil { //nolint:gosec // G703: the file is ours, in a folder that is its owner's only
			return err
		}
	}
	return removeIfExists(layout.EtcdEndpoint())
}

func removeIfExists(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
