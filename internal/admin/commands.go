package admin

import (
	"context"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxCommands is how many replays, snapshots and the like may run at a time.
const maxCommands = 4

// progressInterval is how often a running command reports its progress.
const progressInterval = 500 * time.Millisecond

// ContentTypeProgress asks for lines of [Progress] while a command runs. Without it
// the answer is one such line at the end.
const ContentTypeProgress = "application/x-ndjson"

func (s *Server) replay(w http.ResponseWriter, r *http.Request) error {
	var in ReplayRequest
	if err := decode(r, &in); err != nil {
		return err
	}
	if in.Sink == "" {
		return problemf(http.StatusBadRequest, "sink is required")
	}
	if in.FromSequence == 0 && in.FromTime.IsZero() {
		return problemf(http.StatusBadRequest, "fromTime or fromSequence is required")
	}
	if err := inOrder(in.FromTime, in.ToTime); err != nil {
		return err
	}
	return s.command(w, r, func(ctx context.Context, progress func(int)) (p Progress, err error) {
		p.Count, err = s.cfg.Commands.Replay(ctx, in, progress)
		return p, err
	})
}

func (s *Server) snapshot(w http.ResponseWriter, r *http.Request) error {
	var in SnapshotRequest
	if err := decode(r, &in); err != nil {
		return err
	}
	if in.Sink == "" {
		return problemf(http.StatusBadRequest, "sink is required")
	}
	return s.command(w, r, func(ctx context.Context, progress func(int)) (p Progress, err error) {
		p.Count, err = s.cfg.Commands.Snapshot(ctx, in, progress)
		return p, err
	})
}

func (s *Server) backup(w http.ResponseWriter, r *http.Request) error {
	var in BackupRequest
	if err := decode(r, &in); err != nil {
		return err
	}
	if !filepath.IsAbs(in.Dir) {
		return problemf(http.StatusBadRequest, "dir must be an absolute path on the host of the daemon")
	}
	return s.command(w, r, func(ctx context.Context, _ func(int)) (p Progress, err error) {
		p.Count, err = s.cfg.Commands.Backup(ctx, filepath.Clean(in.Dir))
		return p, err
	})
}

func (s *Server) backtest(w http.ResponseWriter, r *http.Request) error {
	var in BacktestRequest
	if err := decode(r, &in); err != nil {
		return err
	}
	if in.From.IsZero() {
		return problemf(http.StatusBadRequest, "from is required")
	}
	if err := inOrder(in.From, in.To); err != nil {
		return err
	}
	return s.command(w, r, func(ctx context.Context, progress func(int)) (p Progress, err error) {
		if p.Backtest, err = s.cfg.Rehearsal.Backtest(ctx, &in, progress); err == nil {
			p.Count = p.Backtest.Scanned
		}
		return p, err
	})
}

// explain answers with what the watches and routes of now make of an event.
func (s *Server) explain(r *http.Request, _ url.Values) (any, error) {
	return s.cfg.Rehearsal.Explain(r.Context(), r.PathValue("event"))
}

// command runs a long operation, reports its progress to the client if that
// asked for it, and ends with the request or the daemon.
func (s *Server) command(w http.ResponseWriter, r *http.Request, run func(context.Context, func(int)) (Progress, error)) error {
	select {
	case s.commands <- struct{}{}:
		defer func() { <-s.commands }()
	default:
		return problemf(http.StatusServiceUnavailable, "%d commands are running already; try again when one has ended", maxCommands)
	}
	ctx, cancel := s.untilStopping(r.Context())
	defer cancel()
	// It takes its time: no deadlines but those of single lines.
	a := &progressAnswer{w: w, rc: http.NewResponseController(w), wanted: strings.Contains(r.Header.Get("Accept"), ContentTypeProgress)}
	_, _ = a.rc.SetReadDeadline(time.Time{}), a.rc.SetWriteDeadline(time.Time{})

	var count atomic.Int64
	type outcome struct {
		Progress
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		var out outcome
		defer func() {
			if v := recover(); v != nil {
				s.panicked(r, v)
				out.err = errPanicked
			}
			done <- out
		}()
		out.Progress, out.err = run(ctx, func(n int) { count.Store(int64(n)) })
	}()
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.line(Progress{Count: int(count.Load())})
		case out := <-done:
			if out.err != nil && ctx.Err() != nil && r.Context().Err() == nil {
				out.err = problemf(http.StatusServiceUnavailable, "the daemon is stopping; %d events were queued", out.Count)
			}
			if out.err != nil { // the status code may have been sent before
				s.log.Warn("command failed", "command", r.Method+" "+r.URL.Path, "count", out.Count, "error", out.err)
			}
			return a.end(out.Progress, out.err)
		}
	}
}

// progressAnswer is the answer to a command: one JSON value at the end, or lines on
// the way if the client wants them.
type progressAnswer struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	wanted bool
	begun  bool // a line was sent, and with it the status code
}

func (a *progressAnswer) line(p Progress) {
	if !a.wanted {
		return
	}
	if !a.begun {
		a.begun = true
		a.w.Header().Set("Content-Type", ContentTypeProgress)
	}
	_ = a.rc.SetWriteDeadline(time.Now().Add(requestTimeout)) // see limited
	writeJSON(a.w, p)
	_ = a.rc.Flush() // a client that is gone ends the command through its context
}

func (a *progressAnswer) end(last Progress, err error) error {
	_ = a.rc.SetWriteDeadline(time.Now().Add(requestTimeout)) // see limited
	switch {
	case a.begun && err != nil:
		a.line(Progress{Count: last.Count, Error: err.Error()})
		return nil //nolint:nilerr // the answer has it
	case err != nil:
		return err
	}
	last.Done = true
	if a.begun {
		a.line(last)
		return nil
	}
	return answer(a.w, last)
}

// untilStopping returns a context that also ends when the daemon starts to stop, and what
// ends it.
func (s *Server) untilStopping(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-s.cfg.Stopping:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(); watching.Wait() }
}

func (s *Server) reload(w http.ResponseWriter, r *http.Request) error {
	config, err := s.cfg.Commands.Reload(r.Context())
	if err != nil {
		return err
	}
	return answer(w, config)
}

// configuration answers with the configuration that runs, and the file with its problems.
func (s *Server) configuration(*http.Request, url.Values) (any, error) { return s.cfg.Configuration() }

func (s *Server) plan(w http.ResponseWriter, r *http.Request) error {
	var in PlanRequest
	if err := decode(r, &in); err != nil {
		return err
	}
	plan, err := s.cfg.Commands.Plan(in.Configuration)
	if err != nil {
		return err
	}
	return answer(w, Planned{plan})
}

func onSink(act func(s Sinks, ctx context.Context, sink string) error) func(*Server) handler {
	return plain(func(s *Server, w http.ResponseWriter, r *http.Request) error {
		if err := act(s.cfg.Sinks, r.Context(), r.PathValue("sink")); err != nil {
			return err
		}
		return answer(w, struct{}{})
	})
}

func (s *Server) skipEvent(w http.ResponseWriter, r *http.Request) error {
	var in SkipRequest
	if err := decode(r, &in); err != nil {
		return err
	}
	skipped, err := s.cfg.Sinks.Skip(r.Context(), r.PathValue("sink"), in.Sequence)
	if err != nil {
		return err
	}
	return answer(w, skipped)
}
