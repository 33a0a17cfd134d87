// Command object is a server of the S3 API for tests, the Versity gateway over a folder, in a process of its own
// that can be killed or stopped. Its argument is a JSON document (spec). It prints its address and ends with its
// input. The folder has a folder for each bucket, with a file for each object.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"

	"github.com/watcherd/watcherd/internal/testservers/servers/program"
)

// spec is what internal/testservers calls ObjectSpec.
type spec struct {
	Dir    string
	Bucket string // is made
	Port   int
	Cert   string // PEM; TLS if not empty
	Key    string
	Access string
	Secret string
}

func main() { program.Main(run) }

func run(ctx context.Context, s *spec) error {
	address, err := program.Address(s.Port)
	if err != nil {
		return err
	}
	config := &embedgw.Config{
		RootUserAccess: s.Access, RootUserSecret: s.Secret, Ports: []string{address}, Quiet: true, KeepAlive: true,
		MaxConnections: 1000, MaxRequests: 1000, MultipartMaxParts: 10000,
	}
	objects := filepath.Join(s.Dir, "buckets")
	if err := os.MkdirAll(filepath.Join(objects, s.Bucket), 0o700); err != nil {
		return err
	}
	if s.Cert != "" {
		config.CertFile, config.KeyFile = filepath.Join(s.Dir, "cert"), filepath.Join(s.Dir, "key")
		err := errors.Join(os.WriteFile(config.CertFile, []byte(s.Cert), 0o600), os.WriteFile(config.KeyFile, []byte(s.Key), 0o600))
		if err != nil {
			return err
		}
	}
	stdout := os.Stdout
	if os.Stdout, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil { // the gateway reports on it
		return err
	}
	// Metadata is in files, since not every filesystem of a machine for tests has extended attributes.
	if err := os.MkdirAll(filepath.Join(s.Dir, "metadata"), 0o700); err != nil {
		return err
	}
	metadata, err := meta.NewSideCar(filepath.Join(s.Dir, "metadata"))
	if err != nil {
		return err
	}
	backend, err := posix.New(objects, metadata, posix.PosixOpts{SideCarDir: filepath.Join(s.Dir, "metadata")})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- embedgw.RunVersityGW(ctx, backend, config) }()
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- err
	}()
	for {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
			break
		}
		select {
		case err := <-ended:
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
	fmt.Fprintln(stdout, address)
	return <-ended
}
