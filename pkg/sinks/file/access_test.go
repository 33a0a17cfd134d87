//go:build unix

package file_test

import (
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/watcherd/watcherd/pkg/sinks/file"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// foreignGroup is a group that the process may give to its files, not its own one.
func foreignGroup(t *testing.T) int {
	t.Helper()
	if os.Geteuid() == 0 {
		return os.Getegid() + 4711
	}
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if g != os.Getegid() {
			return g
		}
	}
	t.Skip("the user has one group")
	return 0
}

// TestAccess: files have the mode and the group that are configured, rotated and
// compressed ones too, regardless of the umask; new folders let the readers of files in.
func TestAccess(t *testing.T) {
	group := foreignGroup(t)
	f := newTree(t)
	if err := os.Mkdir(f.path("there"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.path("there/deployments.jsonl"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	is := func(name string, mode fs.FileMode, gid int) {
		t.Helper()
		info, err := os.Stat(f.path(name))
		if err != nil {
			t.Fatal(err)
		}
		st, _ := info.Sys().(*syscall.Stat_t)
		if info.Mode().Perm() != mode || int(st.Gid) != gid {
			t.Errorf("%s has mode %o and group %d, want %o and %d", name, info.Mode().Perm(), st.Gid, mode, gid)
		}
	}
	shared := func(c *file.Config) {
		c.Mode, c.Group = "0660", strconv.Itoa(group)
		c.Rotate = file.Rotate{MaxBytes: 4 << 10, Compress: "gzip"}
	}
	for _, folder := range []string{"new/below/", "there/"} {
		s := f.open(folder+"{resource}.jsonl", shared)
		for _, e := range sinktest.Events(20, 1) {
			f.write(s, e)
		}
	}
	own := f.open("own/{resource}.jsonl")
	f.write(own, sinktest.Events(1, 1)...)

	is("new", 0o770, group)
	is("new/below", 0o770, group)
	is("there", 0o700, os.Getegid())
	is("own", 0o700, os.Getegid())
	is("own/deployments.jsonl", 0o600, os.Getegid())
	compressed := func() (names []string) {
		for _, name := range f.names() {
			if strings.HasSuffix(name, ".gz") {
				names = append(names, name)
			}
		}
		return names
	}
	eventually(t, "compressed files", func() bool { return len(compressed()) > 3 })
	is("new/below/deployments.jsonl", 0o660, group)
	is("there/deployments.jsonl", 0o660, group)
	for _, name := range compressed() {
		is(name, 0o660, group)
	}
}

// TestAccessOfAnExistingFile: without a configured mode, that of a file stays.
func TestAccessOfAnExistingFile(t *testing.T) {
	f := newTree(t)
	if err := os.WriteFile(f.path("deployments.jsonl"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(f.path("deployments.jsonl"), 0o644); err != nil {
		t.Fatal(err)
	}
	f.write(f.open("{resource}.jsonl"), sinktest.Events(1, 1)...)
	if info, err := os.Stat(f.path("deployments.jsonl")); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the mode is %v: %v", info.Mode(), err)
	}
}

func TestValidateAccess(t *testing.T) {
	for _, test := range []struct{ mode, group, bad string }{
		{"", "", ""},
		{"0640", "0", ""},
		{"664", "12345", ""},
		{"0648", "", `mode: "0648" is not an octal mode such as "0640"`},
		{"rw-r-----", "", "is not an octal mode"},
		{"01600", "", "is not an octal mode"},
		{"0440", "", "does not let the owner read and write"},
		{"", "no-such-group", `group: this machine has no group "no-such-group"; a number needs none`},
		{"", "-1", "group: this machine has no group"},
	} {
		c := file.NewConfig()
		c.Path, c.Mode, c.Group = "x", test.mode, test.group
		err := c.Validate()
		if test.bad == "" && err != nil || test.bad != "" && (err == nil || !strings.Contains(err.Error(), test.bad)) {
			t.Errorf("mode %q, group %q: %v, want %q", test.mode, test.group, err, test.bad)
		}
	}
}
