package admin

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/status"
)

// livez fails if the process should be restarted. reasons includes the causes.
func (s *Server) livez(reasons bool) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		now := time.Now()
		return health(w, r, "livez", s.cfg.Status().Live(now), reasons)
	}
}

// readyz fails until everything configured is synced or known not to be possible,
// and again when the daemon is stopping. What is degraded shows, and is ready.
func (s *Server) readyz(reasons bool) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		now := time.Now()
		return health(w, r, "readyz", s.cfg.Status().Checks(now), reasons)
	}
}

// health answers as the Kubernetes API server does: the status code is the answer,
// the text is for people.
func health(w http.ResponseWriter, r *http.Request, name string, checks []status.Check, reasons bool) error {
	if one := r.PathValue("check"); one != "" {
		checks = slices.DeleteFunc(checks, func(c status.Check) bool { return !covers(one, c.Name) })
		if len(checks) == 0 {
			return problemf(http.StatusNotFound, "%s has no check %q; ?verbose lists them", name, one)
		}
	}
	query := r.URL.Query()
	excluded := query["exclude"]
	var text strings.Builder
	worst, degraded := status.OK, 0
	for _, c := range checks {
		if slices.ContainsFunc(excluded, func(e string) bool { return covers(e, c.Name) }) {
			fmt.Fprintf(&text, "[+]%s excluded\n", c.Name)
			continue
		}
		worst = max(worst, c.Verdict)
		switch {
		case c.Verdict == status.OK:
			fmt.Fprintf(&text, "[+]%s ok\n", c.Name)
			continue
		case c.Verdict == status.Degraded:
			degraded++
		}
		reason := "reason withheld; ask the admin listener"
		if reasons {
			reason = strings.Join(strings.Fields(c.Reason), " ")
		}
		fmt.Fprintf(&text, "[-]%s %s: %s\n", c.Name, c.Verdict, reason)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if worst == status.Failed {
		fmt.Fprintf(&text, "%s check failed\n", name)
		w.WriteHeader(http.StatusServiceUnavailable)
		_, err := fmt.Fprint(w, text.String())
		return ignoreGone(err)
	}
	if !query.Has("verbose") {
		_, err := fmt.Fprint(w, "ok")
		return ignoreGone(err)
	}
	fmt.Fprintf(&text, "%s check passed", name)
	if degraded > 0 {
		fmt.Fprintf(&text, ", %d degraded", degraded)
	}
	_, err := fmt.Fprintln(w, text.String())
	return ignoreGone(err)
}

// covers reports whether a name given by a user means a check: itself or what it is
// a part of.
func covers(given, check string) bool {
	return given == check || strings.HasPrefix(check, given+"/")
}

// ignoreGone drops the error of a write: the client is gone.
func ignoreGone(error) error { return nil }

func (s *Server) status(w http.ResponseWriter, _ *http.Request) error {
	p := page{ResponseWriter: w}
	if err := answer(&p, s.cfg.Status()); err != nil {
		return err
	}
	return ignoreGone(s.unread.write(w, p.body))
}
