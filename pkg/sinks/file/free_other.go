//go:build !linux && !darwin

package file

// freeSpace does not know the free space here.
func freeSpace(string) (free int64, known bool, err error) { return 0, false, nil }
