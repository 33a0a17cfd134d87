//go:build !linux && !darwin

package main

import (
	"os"

	"golang.org/x/term"
)

// fromKeyboard reports whether the terminal sends the signals of its keyboard to this process
// and those that it starts.
func fromKeyboard() bool { return term.IsTerminal(int(os.Stdin.Fd())) }
