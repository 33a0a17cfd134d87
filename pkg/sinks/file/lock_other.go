//go:build !unix || solaris || aix

package file

import "os"

// lock does nothing: the system has no flock.
func lock(*os.File) error { return nil }
