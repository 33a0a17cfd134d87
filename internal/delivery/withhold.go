package delivery

// A receiver's answer may quote the event that it is about, and errors carry its text.
// When more is to be hidden than before, the texts of earlier errors are withheld. None
// is in the schedule of retries, which outlives the process.

const (
	textWithheld = "the text is withheld, since the configuration hides more than it did then"
	textOfBefore = "as before the restart; the next attempt shows why"
)

func (c *Config) hiddenNow() uint64 {
	if c.Hidden == nil {
		return 0
	}
	return c.Hidden()
}

// withhold replaces the texts of errors if more is hidden since.
func (e *engine) withhold() {
	now := e.cfg.hiddenNow()
	if now == e.hidden {
		return
	}
	e.hidden = now
	withholdText(&e.lastError)
	withholdText(&e.circuit.reason)
	e.failures.withhold()
}

func withholdText(text *string) {
	if *text != "" {
		*text = textWithheld
	}
}

func (f *failures) withhold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, known := range f.byLane {
		withholdText(&known.LastError)
	}
}

// withhold is that of the engine for a status that is older.
func (s *Status) withhold() {
	withholdText(&s.Reason)
	withholdText(&s.LastError)
	for i := range s.Failing {
		withholdText(&s.Failing[i].LastError)
	}
}
