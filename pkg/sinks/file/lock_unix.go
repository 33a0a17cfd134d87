//go:build unix && !solaris && !aix

package file

import (
	"os"
	"syscall"
)

// lock claims the file for this descriptor, until it is closed. It does not wait.
func lock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch err {
		case syscall.EINTR:
			continue
		case syscall.ENOTSUP, syscall.ENOSYS, syscall.ENOLCK: // the file system has no locks
			return nil
		default:
			return err
		}
	}
}
