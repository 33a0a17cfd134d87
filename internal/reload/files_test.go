package reload

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// onDisk runs f with a watcher that gets real notifications. With poll off,
// nothing but them can tell it of a change.
func onDisk(t *testing.T, poll time.Duration, d *daemon, f func()) {
	t.Helper()
	d.watcher.timing = timing{settle: 30 * time.Millisecond, poll: poll, apply: time.Millisecond}
	stop := d.run()
	defer stop()
	d.until("the start is over", func() bool { return !d.watcher.Status().LastSuccess.IsZero() && d.ready() })
	f()
}

const pollOff = time.Hour

// ready reports whether the first look has been answered, after which every change
// is one that has to be noticed.
func (d *daemon) ready() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.loads > 0
}

func (d *daemon) until(what string, ok func() bool) {
	d.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("waited in vain until %s; applied %v, status %+v", what, d.got(), d.watcher.Status())
		}
	}
}

func (d *daemon) untilApplied(name string) {
	d.t.Helper()
	d.until(name+" is applied", func() bool {
		got := d.got()
		return len(got) > 0 && got[len(got)-1] == name
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestWaysToChangeAFile: each is done twice, because a watch of the file itself
// would survive the first time only.
func TestWaysToChangeAFile(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, file, text string){
		"write in place": func(t *testing.T, file, text string) {
			must(t, os.WriteFile(file, []byte(text), 0o600))
		},
		"append and truncate": func(t *testing.T, file, text string) {
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
			must(t, err)
			_, err = f.WriteString("# old text that goes\n")
			must(t, err)
			must(t, f.Truncate(0))
			_, err = f.WriteString(text)
			must(t, errors.Join(err, f.Close()))
		},
		"rename over": func(t *testing.T, file, text string) {
			must(t, os.WriteFile(file+".tmp", []byte(text), 0o600))
			must(t, os.Rename(file+".tmp", file))
		},
		"rename over from elsewhere": func(t *testing.T, file, text string) {
			other := filepath.Join(t.TempDir(), "new")
			must(t, os.WriteFile(other, []byte(text), 0o600))
			must(t, os.Rename(other, file))
		},
		"backup and rename, as vim does": func(t *testing.T, file, text string) {
			must(t, os.WriteFile(filepath.Join(filepath.Dir(file), "4913"), nil, 0o600))
			must(t, os.Remove(filepath.Join(filepath.Dir(file), "4913")))
			must(t, os.Rename(file, file+"~"))
			must(t, os.WriteFile(file, []byte(text), 0o600))
			must(t, os.Remove(file+"~"))
		},
		"remove and create": func(t *testing.T, file, text string) {
			must(t, os.Remove(file))
			must(t, os.WriteFile(file, []byte(text), 0o600))
		},
		"link": func(t *testing.T, file, text string) {
			target := filepath.Join(t.TempDir(), "text")
			must(t, os.WriteFile(target, []byte(text), 0o600))
			must(t, os.Symlink(target, file+".link"))
			must(t, os.Rename(file+".link", file))
		},
		"hard link": func(t *testing.T, file, text string) {
			must(t, os.WriteFile(file+".new", []byte(text), 0o600))
			must(t, os.Remove(file))
			must(t, os.Link(file+".new", file))
			must(t, os.Remove(file+".new"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t)
			onDisk(t, pollOff, d, func() {
				for _, next := range []string{"b", "c", "d"} {
					change(t, d.file, content(next))
					d.untilApplied(next)
				}
			})
			d.want("b", "c", "d")
		})
	}
}

// project writes files the way the kubelet does: a folder with the files, a link
// ..data to it that is swapped by rename, links to the files through it.
func project(t *testing.T, dir string, generation int, text string) {
	t.Helper()
	fresh := fmt.Sprintf("..2026_01_02_%d", generation)
	must(t, os.Mkdir(filepath.Join(dir, fresh), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, fresh, "watcherd.yaml"), []byte(text), 0o600))
	data := filepath.Join(dir, "..data")
	old, err := os.Readlink(data)
	must(t, os.Symlink(fresh, data+"_tmp"))
	must(t, os.Rename(data+"_tmp", data))
	if err == nil {
		must(t, os.RemoveAll(filepath.Join(dir, old)))
		return
	}
	must(t, os.Symlink(filepath.Join("..data", "watcherd.yaml"), filepath.Join(dir, "watcherd.yaml")))
}

func TestConfigMap(t *testing.T) {
	d := newDaemon(t)
	dir := filepath.Dir(d.file)
	must(t, os.Remove(d.file))
	project(t, dir, 0, content("a"))
	onDisk(t, pollOff, d, func() {
		for i, next := range []string{"b", "c", "d", "e"} {
			project(t, dir, i+1, content(next))
			d.untilApplied(next)
		}
		project(t, dir, 10, "")
		d.until("the empty file is reported", func() bool { return d.watcher.Status().LastError != nil })
		project(t, dir, 11, content("f"))
		d.untilApplied("f")
	})
	d.want("b", "c", "d", "e", "f")
}

// TestFolderReplaced: notifications end with the folder; the poll finds the new one
// and gets them going again.
func TestFolderReplaced(t *testing.T) {
	d := newDaemon(t)
	dir := filepath.Join(filepath.Dir(d.file), "etc")
	must(t, os.Mkdir(dir, 0o700))
	d.file = filepath.Join(dir, "watcherd.yaml")
	d.watcher.cfg.Path = d.file
	d.write(content("a"))
	onDisk(t, 20*time.Millisecond, d, func() {
		for _, next := range []string{"b", "c"} {
			must(t, os.Rename(dir, dir+"-"+next))
			d.until("the file is missed", func() bool { return d.watcher.Status().LastError != nil })
			must(t, os.Mkdir(dir, 0o700))
			d.write(content(next))
			d.until(next+" is what runs", func() bool { return d.watcher.Status().LastError == nil })
		}
	})
	d.want("b", "c")
	if d.logged("level=ERROR") != 2 {
		t.Errorf("the missing file was reported %d times:\n%s", d.logged("level=ERROR"), d.log.String())
	}
}

// TestRenewedNotifications: after the folder was replaced, a renewed watch tells of
// changes in the new one.
func TestRenewedNotifications(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etc")
	must(t, os.Mkdir(dir, 0o700))
	f, err := watchFolder(dir)
	must(t, err)
	defer f.close()
	for range 3 {
		must(t, os.Rename(dir, filepath.Join(t.TempDir(), "old")))
		must(t, os.Mkdir(dir, 0o700))
		f.renew()
		file := filepath.Join(dir, "new.yaml")
		must(t, os.WriteFile(file, []byte("x"), 0o600))
		for deadline := time.After(20 * time.Second); ; {
			select {
			case e := <-f.events():
				if e.Name != file {
					continue
				}
			case err := <-f.losses():
				t.Fatal(err)
			case <-deadline:
				t.Fatal("no notification from the new folder")
			}
			break
		}
	}
}

func TestOtherFilesInTheFolderDoNotMatter(t *testing.T) {
	for name, want := range map[string]bool{
		"/etc/w/watcherd.yaml": true, "/etc/w/..data": true,
		"/etc/w/watcherd.yaml~": false, "/etc/w/.watcherd.yaml.swp": false, "/etc/w/4913": false,
		"/etc/w": false, "/etc/w/..data_tmp": false, "/etc/w/..2026_01_02": false,
	} {
		if got := concerns(name, "/etc/w/watcherd.yaml"); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestNoNotifications(t *testing.T) {
	d := newDaemon(t)
	d.watcher.watchDir = func(string) (*folder, error) { return nil, errors.New("too many open files") }
	onDisk(t, 10*time.Millisecond, d, func() {
		d.write(content("b"))
		d.untilApplied("b")
	})
	if d.logged("too many open files") != 1 {
		t.Errorf("log:\n%s", d.log.String())
	}
}

func TestFolderMissingAtTheStart(t *testing.T) {
	d := newDaemon(t)
	dir := filepath.Join(filepath.Dir(d.file), "later")
	d.file = filepath.Join(dir, "watcherd.yaml")
	d.watcher.cfg.Path = d.file
	d.watcher.timing = timing{settle: 10 * time.Millisecond, poll: 10 * time.Millisecond, apply: time.Millisecond}
	stop := d.run()
	defer stop()
	d.until("the missing file is reported", func() bool { return d.watcher.Status().LastError != nil })
	must(t, os.Mkdir(dir, 0o700))
	d.write(content("b"))
	d.untilApplied("b")
}

func TestOwnMount(t *testing.T) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Skip("this system does not list its mounts:", err)
	}
	var points []string
	for line := range strings.Lines(string(mounts)) {
		points = append(points, strings.Fields(line)[4])
	}
	if !slices.ContainsFunc(points, ownMount) {
		t.Errorf("none of %v is a mount", points)
	}
	if file := filepath.Join(t.TempDir(), "file"); ownMount(file) {
		t.Errorf("%s is a mount", file)
	}
}
