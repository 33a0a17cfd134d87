package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/watcherd/watcherd/playground/internal/command"
	"github.com/watcherd/watcherd/playground/internal/etcd"
	"github.com/watcherd/watcherd/playground/internal/pki"
	"github.com/watcherd/watcherd/playground/internal/statedir"
)

const compactLimit = time.Minute

// kubeconfig makes a kubeconfig for any user, so that a test can be one with
// few rights.
func kubeconfig(args []string) error {
	fs := command.Flags("playground kubeconfig", "--dir DIR --user NAME [--groups A,B] [--out FILE]")
	path := fs.String("dir", "", "state directory of the server")
	user := fs.String("user", "", "user name, the certificate's common name")
	groups := fs.String("groups", "", "comma-separated groups, the certificate's organizations")
	out := fs.String("out", "", "file to write (default: standard output)")
	if err := command.Parse(fs, args, 0); err != nil {
		return err
	}
	if *path == "" || *user == "" {
		return command.Usagef("kubeconfig needs --dir and --user")
	}
	layout, err := statedir.At(*path)
	if err != nil {
		return err
	}
	server, err := layout.Server()
	if err != nil {
		return err
	}
	authority, err := pki.Open(layout.PKI())
	if err != nil {
		return err
	}
	members := strings.FieldsFunc(*groups, func(r rune) bool { return r == ',' })
	text, err := authority.Kubeconfig(server, *user, members)
	if err != nil {
		return err
	}
	if *out == "" {
		_, err = os.Stdout.Write(text)
		return err
	}
	return os.WriteFile(*out, text, 0o600)
}

func compact(ctx context.Context, args []string) error {
	fs := command.Flags("playground compact", "--dir DIR [--revision N]")
	path := fs.String("dir", "", "state directory of the running server")
	revision := fs.Int64("revision", 0, "revision (resource version) to compact at (0: the current one)")
	if err := command.Parse(fs, args, 0); err != nil {
		return err
	}
	if *path == "" {
		return command.Usagef("compact needs --dir")
	}
	layout, err := statedir.At(*path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, compactLimit)
	defer cancel()
	at, err := etcd.Compact(ctx, layout, *revision)
	if err != nil {
		return err
	}
	fmt.Printf("compacted revision=%d\n", at)
	return nil
}

// snapshot saves or restores what a stopped server's etcd holds.
func snapshot(args []string) error {
	const synopsis = "save|restore --dir DIR --copy PATH"
	fs := command.Flags("playground snapshot", synopsis)
	path := fs.String("dir", "", "state directory of the stopped server")
	copyDir := fs.String("copy", "", "folder with the copy of etcd's data; save makes it")
	var do func(statedir.Layout, string) error
	if len(args) > 0 {
		switch args[0] {
		case "save":
			do, args = etcd.Save, args[1:]
		case "restore":
			do, args = etcd.Restore, args[1:]
		}
	}
	if err := command.Parse(fs, args, 0); err != nil {
		return err
	}
	if do == nil || *path == "" || *copyDir == "" {
		return command.Usagef("want: playground snapshot %s", synopsis)
	}
	if _, err := os.Stat(*path); err != nil {
		return err
	}
	dir, err := statedir.Open(*path)
	if err != nil {
		return err
	}
	return errors.Join(do(dir.Layout, *copyDir), dir.Close())
}
