package outbox

import (
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble notes its settings in files that it compares with those it is given. They hold
// nothing else, and all of it is in pebbleOptions, so a damaged one is removed.

func isSettings(name string) bool { return strings.HasPrefix(name, "OPTIONS-") }

// dropSettings removes the files of settings in dir that Pebble would refuse. What keeps
// an older release from opening the store is in other places: see format.go.
func dropSettings(fsys vfs.FS, dir string, o *pebble.Options) (dropped []string, err error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	o.EnsureDefaults()
	for _, name := range names {
		if !isSettings(name) {
			continue
		}
		path := fsys.PathJoin(dir, name)
		content, err := readFile(fsys, path)
		if err == nil && o.CheckCompatibility(dir, string(content)) == nil {
			continue
		}
		if err := fsys.Remove(path); err != nil {
			return dropped, err
		}
		dropped = append(dropped, name)
	}
	return dropped, nil
}
