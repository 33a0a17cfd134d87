package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/watcherd/watcherd/playground/internal/apiserver"
	"github.com/watcherd/watcherd/playground/internal/command"
	"github.com/watcherd/watcherd/playground/internal/etcd"
	"github.com/watcherd/watcherd/playground/internal/pki"
	"github.com/watcherd/watcherd/playground/internal/statedir"
)

// serve runs a server. Things are stopped in the order opposite to this: state
// directory, port, etcd, API server with its controller.
func serve(ctx context.Context, args []string) (err error) {
	begin := time.Now()
	fs := command.Flags("playground serve", "[flags] [-- kube-apiserver flags]")
	path := fs.String("dir", "", "state directory; a later start on it continues (default: a temporary one, removed at exit)")
	port := fs.Int("port", 0, "loopback port to serve on (0: a free one)")
	fsync := fs.Bool("fsync", false, "let etcd fsync its log and database")
	quota := fs.Int64("etcd-quota", 0, "largest size of etcd's database in bytes (0: 8 GiB)")
	lifeline := fs.Bool("lifeline", false, "stop when standard input ends, for a parent that may die")
	if err := command.Parse(fs, args, math.MaxInt); err != nil {
		return err
	}

	dir, err := statedir.Open(*path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()

	listener, err := listen(ctx, *port)
	if err != nil {
		return err
	}
	defer closeIgnoringClosed(listener, &err)
	url := "https://" + listener.Addr().String()

	authority, err := pki.Open(dir.PKI())
	if err != nil {
		return err
	}
	if err := dir.WriteServer(url); err != nil {
		return err
	}
	admin, err := authority.Kubeconfig(url, "playground-admin", []string{"system:masters"})
	if err != nil {
		return err
	}
	if err := os.WriteFile(dir.AdminKubeconfig(), admin, 0o600); err != nil {
		return err
	}
	adminConfig, err := clientcmd.RESTConfigFromKubeConfig(admin)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(dir.APIServerLog(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	// Not closed: the API server's log daemon flushes to it until the very end.

	store, err := etcd.Start(ctx, dir.Layout, etcd.Options{Fsync: *fsync, QuotaBytes: *quota})
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped before the start was complete
		}
		return fmt.Errorf("etcd: %w", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	if *lifeline {
		var cut context.CancelFunc
		ctx, cut = context.WithCancel(ctx)
		defer cut()
		go watchLifeline(cut)
	}
	return apiserver.Run(ctx, apiserver.Config{
		Listener: listener,
		EtcdURL:  store.URL(),
		PKI:      authority.Files,
		Flags:    fs.Args(),
		Log:      log,
		Admin:    adminConfig,
		Ready: func() {
			fmt.Printf("ready %s kubeconfig=%s pid=%d after=%.2fs\n",
				url, dir.AdminKubeconfig(), os.Getpid(), time.Since(begin).Seconds())
		},
	})
}

// watchLifeline calls cut when standard input ends. Nothing can interrupt the
// read: its goroutine lasts as long as the process.
func watchLifeline(cut func()) {
	_, _ = io.Copy(io.Discard, os.Stdin) // an error is an end as well
	cut()
}

// Ports picked by ourselves lie below the range from which the kernel takes those
// of outgoing connections. In that range a client that retries while the server
// is restarting may be given the server's port, and so keep it from coming back.
const (
	firstPort  = 20000
	afterPorts = 30000
	portTries  = 100
)

func listen(ctx context.Context, port int) (net.Listener, error) {
	var lc net.ListenConfig
	if port != 0 {
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("port %d is in use", port)
		}
		return l, err
	}
	for range portTries {
		l, err := listen(ctx, firstPort+rand.IntN(afterPorts-firstPort))
		if err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("no free port between %d and %d after %d tries", firstPort, afterPorts-1, portTries)
}

// closeIgnoringClosed closes the listener, which the API server has closed
// already if it ever started.
func closeIgnoringClosed(l net.Listener, err *error) {
	if closeErr := l.Close(); !errors.Is(closeErr, net.ErrClosed) {
		*err = errors.Join(*err, closeErr)
	}
}
