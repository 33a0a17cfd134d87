// Package program has the common parts of the servers: an argument that is a JSON document, and an exit
// code for an error.
package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// Main runs a server with the spec that the process has as its argument. An error of it is printed, and
// the process exits with 1.
func Main[S any](run func(context.Context, *S) error) {
	if err := start(run); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

func start[S any](run func(context.Context, *S) error) error {
	if len(os.Args) != 2 {
		return errors.New("want one argument: a spec")
	}
	s := new(S)
	if err := json.Unmarshal([]byte(os.Args[1]), s); err != nil {
		return err
	}
	return run(context.Background(), s)
}

// Address returns an address of this machine that nothing listens on, of any port if it is 0.
func Address(port int) (string, error) {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}
