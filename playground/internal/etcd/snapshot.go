package etcd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/watcherd/watcherd/playground/internal/statedir"
)

// Save copies etcd's data to the new directory to. The caller has locked the
// state directory, so that no server is writing to it.
func Save(layout statedir.Layout, to string) error {
	if err := mustHoldData(layout.Etcd()); err != nil {
		return err
	}
	return copyTree(layout.Etcd(), to)
}

// Restore puts the data that Save copied to from in the place of the present
// data. The next start continues with the resource versions of that time, as a
// cluster does whose etcd was restored from a backup. The caller has locked the
// state directory.
func Restore(layout statedir.Layout, from string) error {
	if err := mustHoldData(from); err != nil {
		return err
	}
	// The copy is complete before anything is replaced: a full disk costs
	// nothing.
	fresh := layout.Etcd() + ".restored"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := copyTree(from, fresh); err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	if err := os.RemoveAll(layout.Etcd()); err != nil {
		return err
	}
	return os.Rename(fresh, layout.Etcd())
}

func mustHoldData(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "member")); err != nil {
		return fmt.Errorf("%s: no etcd data: %w", dir, err)
	}
	return nil
}

func copyTree(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	return os.CopyFS(to, os.DirFS(from))
}
