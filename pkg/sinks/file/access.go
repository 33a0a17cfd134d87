package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// access is who may read the files. The zero value leaves files and folders to their owner.
type access struct {
	mode  fs.FileMode // of files; 0: not configured
	group string      // "": not configured
	gid   int         // of group
}

func (c *Config) access() (a access, err error) {
	if a.mode, err = parseMode(c.Mode); err != nil {
		return a, &sinks.FieldError{Path: "mode", Msg: err.Error()}
	}
	a.group = c.Group
	if a.gid, err = lookupGroup(c.Group); err != nil {
		return a, &sinks.FieldError{Path: "group", Msg: err.Error()}
	}
	return a, nil
}

// parseMode reads octal permissions; 0 for "".
func parseMode(s string) (fs.FileMode, error) {
	if s == "" {
		return 0, nil
	}
	mode, err := strconv.ParseUint(s, 8, 16)
	if err != nil || mode > 0o777 {
		return 0, fmt.Errorf(`%q is not an octal mode such as "0640"`, s)
	}
	if mode&0o600 != 0o600 {
		return 0, fmt.Errorf(`%q does not let the owner read and write; a mode such as "0640" does`, s)
	}
	return fs.FileMode(mode), nil
}

// lookupGroup returns the number of a group, -1 for "".
func lookupGroup(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	if id, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(id), nil
	}
	g, err := user.LookupGroup(name)
	if errors.As(err, new(user.UnknownGroupError)) {
		return 0, fmt.Errorf("this machine has no group %q; a number needs none", name)
	}
	if err != nil {
		return 0, fmt.Errorf("find group %q: %w", name, err)
	}
	return strconv.Atoi(g.Gid)
}

// grant sets the group and the mode of a file. The group comes first: others never have
// the rights of the mode.
func (a *access) grant(f *os.File) error { return a.set(f, a.mode) }

// openFolder sets those of a new folder: who may read its files may list it.
func (a *access) openFolder(f *os.File) error {
	mode := a.mode
	if mode != 0 {
		mode |= 0o100 | mode&0o444>>2
	}
	return a.set(f, mode)
}

func (a *access) set(f *os.File, mode fs.FileMode) error {
	if a.group != "" {
		if err := f.Chown(-1, a.gid); err != nil {
			return fmt.Errorf("set group %s, of which the user of the process must be a member: %w", a.group, err)
		}
	}
	if mode == 0 {
		return nil
	}
	return f.Chmod(mode)
}
