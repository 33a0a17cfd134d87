//go:build linux || darwin

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// fromKeyboard reports whether the terminal sends the signals of its keyboard to this process
// and those that it starts: they are in the foreground of their controlling terminal. Their
// input does not matter.
func fromKeyboard() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false // there is none
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
