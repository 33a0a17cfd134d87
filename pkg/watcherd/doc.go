// Package watcherd is the daemon as a library: a Go program can run it with sink
// kinds of its own beside, or instead of, the built-in ones of the
// package kinds. A program links the kinds that it names.
//
//	table := kinds.Builtin()
//	table["mylake"] = func() sinks.Config { return &mylake.Config{} }
//	err := watcherd.Run(ctx, watcherd.Options{ConfigFile: "watcherd.yaml", REST: rest, Kinds: table, Logger: log})
//
// Run blocks, owns every goroutine and file that it opens, and changes no process
// globals. [ExportClientGo] does: client-go's hook for informer metrics is
// process-wide. So is client-go's logger, klog, which stays the program's to set.
package watcherd
