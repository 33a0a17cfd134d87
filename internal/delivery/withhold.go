package delivery

// The text of an error may quote the event. When Config.Hidden changes, the texts of
// earlier errors are withheld. The schedule of retries, which outlives the process, has
// none.

const (
	textWithheld = "the text is withheld, since the configuration hides more than it did then"
	textOfBefore = "as before the restart; the next attempt has the reason"
)

func (c *Config) hiddenNow() uint64 {
	if c.Hidden == nil {
		return 0
	}
	return c.Hidden()
}

// withhold replaces the texts of errors after a change of Config.Hidden.
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

// withhold replaces the texts of errors in an older status.
func (s *Status) withhold() {
	withholdText(&s.Reason)
	withholdText(&s.LastError)
	for i := range s.Failing {
		withholdText(&s.Failing[i].LastError)
	}
}
