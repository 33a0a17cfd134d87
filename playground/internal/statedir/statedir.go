// Package statedir lays out the directory in which one playground keeps
// everything: etcd's data, certificates, kubeconfigs and logs.
//
// Guarantees: a [Dir] that was opened is locked until Close, also against other
// processes, and the lock goes with the process that held it, however it ended.
package statedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrInUse means that another process has the directory open.
var ErrInUse = errors.New("in use by another playground")

// Layout names what a state directory holds. It is a value: making one touches
// nothing on disk.
type Layout struct {
	Root string // absolute
}

// At is the layout of the directory dir, which need not exist.
func At(dir string) (Layout, error) {
	root, err := filepath.Abs(dir)
	return Layout{Root: root}, err
}

// PKI is the folder of the certificate authority and what it has signed.
func (l Layout) PKI() string { return filepath.Join(l.Root, "pki") }

// Etcd is etcd's data directory.
func (l Layout) Etcd() string { return filepath.Join(l.Root, "etcd") }

// EtcdLog is the file etcd logs to.
func (l Layout) EtcdLog() string { return filepath.Join(l.Root, "etcd.log") }

// EtcdEndpoint is the file that holds the URL of the running etcd.
func (l Layout) EtcdEndpoint() string { return filepath.Join(l.Root, "etcd.endpoint") }

// APIServerLog is the file the API server logs to.
func (l Layout) APIServerLog() string { return filepath.Join(l.Root, "apiserver.log") }

// AdminKubeconfig is the kubeconfig of the cluster's administrator.
func (l Layout) AdminKubeconfig() string { return filepath.Join(l.Root, "admin.kubeconfig") }

// serverFile holds the API server's URL.
func (l Layout) serverFile() string { return filepath.Join(l.Root, "server") }

// WriteServer records the API server's URL.
func (l Layout) WriteServer(url string) error {
	return os.WriteFile(l.serverFile(), []byte(url+"\n"), 0o600)
}

// Server is the URL of the API server that runs, or ran last, on the directory.
func (l Layout) Server() (string, error) {
	b, err := os.ReadFile(l.serverFile())
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%s: no playground was ever started here", l.Root)
	}
	return strings.TrimSpace(string(b)), err
}

// Dir is a state directory that this process owns.
type Dir struct {
	Layout

	lock      *os.File
	temporary bool
}

// Open makes the directory if needed and locks it. With an empty path it makes
// a temporary one, which Close removes.
func Open(path string) (*Dir, error) {
	temporary := path == ""
	if temporary {
		tmp, err := os.MkdirTemp("", "watcherd-playground-")
		if err != nil {
			return nil, err
		}
		path = tmp
	}
	layout, err := At(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(layout.Root, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(layout.Root, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		closeErr := lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", layout.Root, ErrInUse)
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", layout.Root, err), closeErr)
	}
	return &Dir{Layout: layout, lock: lock, temporary: temporary}, nil
}

// Close unlocks the directory and removes it if it is a temporary one.
func (d *Dir) Close() error {
	var err error
	if d.temporary {
		err = os.RemoveAll(d.Root)
	}
	return errors.Join(err, d.lock.Close())
}
