//go:build linux || darwin

package file

import "syscall"

// freeSpace returns how many bytes can be written on the disk of the folder. Not known
// means that the file system does not say.
func freeSpace(path string) (free int64, known bool, err error) {
	var fs syscall.Statfs_t
	for {
		err = syscall.Statfs(path, &fs)
		if err != syscall.EINTR {
			break
		}
	}
	return int64(fs.Bavail) * int64(fs.Bsize), err == nil && fs.Blocks > 0, err //nolint:unconvert // types differ by system
}
