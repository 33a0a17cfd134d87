package status

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

const (
	// stuck is after how long a commit, or the committer, counts as hanging. A slow
	// disk is slow for seconds.
	stuck = 2 * time.Minute

	// silent is after how long without a word from the API server a watch counts as
	// degraded. Bookmarks come about once a minute, and the watch's own watchdog
	// looks after three.
	silent = 5 * time.Minute

	// patience is for how long a first list that fails is still to come: an API server that is
	// busy, or restarts, answers again within seconds. A resource that fails for longer must not
	// keep the daemon from being ready.
	patience = 30 * time.Second

	// behind is after how long a pause of a watch counts: API servers promise 75
	// seconds of history.
	behind = 30 * time.Second
)

// Verdict is the result of a check.
type Verdict int

// The verdicts, from good to bad.
const (
	OK Verdict = iota
	Degraded
	Failed
)

func (v Verdict) String() string {
	return [...]string{"ok", "degraded", "failed"}[v]
}

// Check is one thing that was looked at.
type Check struct {
	Name    string // such as store, sink/archive, watch/workloads/pods.v1
	Verdict Verdict
	Reason  string // why it is not OK
}

// Live returns the reasons to restart the process; none if it should keep running. A
// failing sink, store budget or API server is not one: a restart would not fix it.
func (s *Status) Live(now time.Time) []Check {
	commit := Check{Name: "commit"}
	if j := s.Store.Journal; j != nil && j.late() {
		return []Check{commit} // its servers are away
	}
	if s.Store.CommitStuck > stuck {
		commit.fail("a commit to the store hangs for %s", s.Store.CommitStuck.Round(time.Second))
	}
	committer := Check{Name: "committer"}
	if age := now.Sub(s.Beat); !s.Beat.IsZero() && age > stuck && !s.Store.Paused && !s.Stopping {
		committer.fail("the committer does not answer for %s", age.Round(time.Second))
	}
	return []Check{commit, committer}
}

// Checks returns the condition of every part at a time.
func (s *Status) Checks(now time.Time) []Check {
	list := []Check{s.checkStopping(), s.checkStore(), s.checkConfig()}
	if s.follows() {
		return list
	}
	list = append(list, s.checkPipeline(), s.checkDiscovery())
	for i := range s.Watches {
		list = s.Watches[i].checks(list, now)
	}
	for i := range s.Routes {
		list = append(list, s.Routes[i].check())
	}
	for i := range s.Sinks {
		list = append(list, s.Sinks[i].check(now))
	}
	return list
}

// Worst is the worst of the verdicts.
func Worst(checks []Check) Verdict {
	worst := OK
	for _, c := range checks {
		worst = max(worst, c.Verdict)
	}
	return worst
}

func (c *Check) fail(format string, args ...any) {
	c.Verdict, c.Reason = Failed, fmt.Sprintf(format, args...)
}

func (c *Check) degrade(format string, args ...any) {
	c.Verdict, c.Reason = Degraded, fmt.Sprintf(format, args...)
}

func (s *Status) checkStopping() Check {
	c := Check{Name: "shutdown"}
	if s.Stopping {
		c.fail("the daemon is stopping")
	}
	return c
}

// journalLag is how far behind its journal a replica may be that is ready to take over, and how long a leader may have
// appended nothing.
const journalLag = 5 * time.Second

func (j *Journal) late() bool { return j.Lag < 0 || j.Lag > journalLag }

// follows reports whether the process only follows another replica.
func (s *Status) follows() bool { return s.Store.Journal != nil && s.Store.Journal.Role == Follower }

func (s *Status) checkStore() Check {
	c := Check{Name: "store"}
	switch j := s.Store.Journal; {
	case s.follows() && j.Lag < 0:
		c.fail("this replica follows %s, and has not had all of its journal yet", cmp.Or(j.Leader, "no leader yet"))
	case s.follows() && j.late():
		c.fail("this replica follows %s, and has not had all of its journal for %s", cmp.Or(j.Leader, "no leader yet"), j.Lag.Round(time.Second))
	case s.follows():
	case s.Store.Opening:
		c.fail("it is being opened and checked")
	case s.Store.Failed != "":
		c.fail("%s", s.Store.Failed)
	case j != nil && j.late():
		c.fail("the journal has taken nothing for %s; nothing is recorded or delivered until it does", j.Lag.Round(time.Second))
	case s.Store.CommitStuck > stuck:
		c.fail("a commit hangs for %s", s.Store.CommitStuck.Round(time.Second))
	case s.Store.Paused:
		c.degrade("ingest is paused: %s; deliveries continue", s.Store.Reason)
	}
	return c
}

func (s *Status) checkConfig() Check {
	c := Check{Name: "config"}
	switch {
	case s.Config.LastError != "":
		c.degrade("the file is not what runs: %s", s.Config.LastError)
	case len(s.Config.NeedsRestart) > 0:
		c.degrade("changes of %s take effect at a restart", strings.Join(s.Config.NeedsRestart, ", "))
	}
	return c
}

func (s *Status) checkPipeline() Check {
	c := Check{Name: "pipeline"}
	if !s.Applied {
		c.fail("the configuration is not running yet")
	}
	return c
}

func (s *Status) checkDiscovery() Check {
	c := Check{Name: "discovery"}
	switch {
	case s.Undiscovered && s.DiscoveryError != "":
		c.fail("no watch can start: %s", s.DiscoveryError)
	case s.Undiscovered:
		c.fail("the served resources are not known yet")
	case s.DiscoveryError != "":
		c.degrade("%s", s.DiscoveryError)
	}
	return c
}

func (w *Watch) checks(list []Check, now time.Time) []Check {
	for i := range w.Sources {
		list = append(list, w.Sources[i].check(w.Name, now))
	}
	for _, m := range w.Missing {
		c := Check{Name: "watch/" + w.Name + "/" + m.Resource}
		if m.Pending {
			c.fail("waiting: %s", m.Reason)
		} else {
			c.degrade("waiting: %s", m.Reason)
		}
		list = append(list, c)
	}
	return list
}

func (s *Source) check(watch string, now time.Time) Check {
	c := Check{Name: "watch/" + watch + "/" + s.Resource}
	if s.Namespace != "" {
		c.Name += "/" + s.Namespace
	}
	quiet := now.Sub(s.LastContact)
	switch {
	case !s.Synced && s.Message != "" && Begins(&s.WatchStatus, now):
		c.fail("%s: the first list is not complete: %s", s.State, s.Message)
	case s.Message != "":
		c.degrade("%s: %s", s.State, s.Message)
	case s.Reason != "":
		c.degrade("%s: %s", s.State, s.Reason)
	case !s.Synced:
		c.fail("%s: the first list is not complete", s.State)
	case !s.PausedSince.IsZero() && now.Sub(s.PausedSince) > behind:
		c.degrade("%s: paused for %s until the store has taken what was read; the API server may drop what comes meanwhile", s.State, now.Sub(s.PausedSince).Round(time.Second))
	case !s.LastContact.IsZero() && quiet > silent:
		c.degrade("%s: nothing was heard from the API server for %s", s.State, quiet.Round(time.Second))
	}
	return c
}

// Begins reports whether the first list of a resource is under way, or has been failing for a
// moment only in a way that may pass.
func Begins(w *dynamicfactory.WatchStatus, now time.Time) bool {
	return w.Message == "" || w.State == dynamicfactory.StateBackingOff && now.Sub(w.Since) <= patience
}

func (r *Route) check() Check {
	c := Check{Name: "route/" + r.Name}
	switch {
	case r.Errors == 0:
	case r.FirstError == "":
		c.degrade("its expression failed %d times; the error may quote what is hidden now", r.Errors)
	default:
		c.degrade("its expression failed %d times, first with: %s", r.Errors, r.FirstError)
	}
	return c
}

func (s *Sink) check(now time.Time) Check {
	c := Check{Name: "sink/" + s.Name}
	switch {
	case !s.Configured && s.Queued > 0:
		c.degrade("it is not configured any more; %s for it to come back, or for a purge", waiting(s.Queued))
	case !s.Configured:
	case s.State == "backing-off" || s.State == "paused" || s.State == "opening":
		c.degrade("%s: %s; %s", s.State, s.why(), waiting(s.Queued))
		if next := s.NextAttempt.Sub(now); next > 0 {
			c.Reason += fmt.Sprintf("; next attempt in %s", next.Round(time.Second))
		}
	case s.State == "stopped":
		c.degrade("stopped: %s", s.why())
	case s.Stalled:
		c.degrade("reading has stopped: %s behind objects that fail%s", waiting(s.Blocked), s.culprit(now))
	case s.Blocked > 0 && len(s.Failing) > 0:
		c.degrade("%s behind objects that fail%s", waiting(s.Blocked), s.culprit(now))
	case s.Blocked > 0:
		c.degrade("%s for a retry: %s", waiting(s.Blocked), s.why())
	case s.DeadLetters > 0:
		c.degrade("dead letters are kept: %d; see 'watcherd deadletters list --sink %s'", s.DeadLetters, s.Name)
	}
	return c
}

func waiting[N int | int64](events N) string {
	if events == 1 {
		return "1 event waits"
	}
	return fmt.Sprintf("%d events wait", events)
}

// culprit names the object that has been failing for the longest time.
func (s *Sink) culprit(now time.Time) string {
	if len(s.Failing) == 0 {
		return ""
	}
	f := &s.Failing[0]
	name, more := f.Subject, ""
	if name == "" {
		name = "the object of event " + strconv.FormatUint(f.Sequence, 10)
	}
	if s.FailingObjects > 1 {
		more = fmt.Sprintf(", and %d more", s.FailingObjects-1)
	}
	return fmt.Sprintf(": %s for %s%s: %s", name, now.Sub(f.Since).Round(time.Second), more, cmp.Or(f.LastError, "no reason known"))
}

func (s *Sink) why() string {
	if s.Reason != "" {
		return s.Reason
	}
	if s.LastError != "" {
		return s.LastError
	}
	return "no reason known"
}
