// Package command is the frame around a program's commands: signals, flags, one
// line about what went wrong, and the exit code.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

// UsageError means that the command line is not valid.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

func (e *UsageError) Unwrap() error { return e.Err }

// Usagef makes a [*UsageError].
func Usagef(format string, args ...any) error {
	return &UsageError{fmt.Errorf(format, args...)}
}

// Main runs the program and returns its exit code. The context is done at the
// first SIGINT or SIGTERM; a second one ends the process at once.
func Main(program string, run func(ctx context.Context, args []string) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	err := run(ctx, os.Args[1:])
	var usage *UsageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		return exitUsage
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		return exitFailed
	}
}

// Flags is a flag set that leaves the printing of errors to [Main].
func Flags(name, synopsis string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {
		fs.SetOutput(os.Stdout)
		fmt.Printf("usage: %s %s\n", name, synopsis)
		fs.PrintDefaults()
	}
	return fs
}

// Parse parses args, of which all must be flags but at most rest.
func Parse(fs *flag.FlagSet, args []string, rest int) error {
	// The flag package calls Usage for errors too; those are one line here.
	help := fs.Usage
	fs.Usage = func() {}
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		help()
		return err
	case err != nil:
		return &UsageError{err}
	case fs.NArg() > rest:
		return Usagef("unexpected argument %q", fs.Arg(rest))
	}
	return nil
}
