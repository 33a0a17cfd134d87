// Package watcherd is the daemon as a library: a Go program can run it with sink
// kinds of its own beside, or instead of, the built-in ones ([Kinds]).
//
//	kinds := watcherd.Kinds()
//	kinds["mylake"] = func() sinks.Config { return &mylake.Config{} }
//	err := watcherd.Run(ctx, watcherd.Options{ConfigFile: "watcherd.yaml", Kinds: kinds})
//
// Run blocks and owns every goroutine and file it opens; it changes no process
// globals but client-go's logger, which is one by design.
package watcherd
