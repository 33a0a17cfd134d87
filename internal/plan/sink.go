package plan

import (
	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/body"
	"github.com/watcherd/watcherd/internal/delivery"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// defaultBatchBytes bounds a batch where neither the file nor the kind does.
const defaultBatchBytes = 1 << 20

func (k *compiler) sink(i int) Sink {
	c := &k.config.Sinks[i]
	s := Sink{
		Name:        c.Name,
		Kind:        c.Kind,
		Format:      sinks.Format(c.Format),
		BatchMode:   c.Batch.MaxEvents != nil && *c.Batch.MaxEvents > 1,
		Retry:       delivery.Retry{Initial: c.Retry.Initial, Max: c.Retry.Max, PoisonAttempts: c.Retry.PoisonAttempts},
		OnOversize:  delivery.Oversize(c.OnOversize),
		StartFrom:   c.StartFrom,
		Fingerprint: fingerprint(c.Raw, c, c.Kind, c.Settings),
	}
	if c.RateLimit != nil {
		s.Rate = delivery.Rate(*c.RateLimit)
	}
	if c.Body != "" {
		compiled, faults := body.Compile(c.Body, c.ContentType)
		for _, f := range faults {
			k.faults = append(k.faults, k.config.ErrorWithin(item("sinks", i)+".body", f.Line, f.Column, "%s", f.Msg))
		}
		s.Body = compiled
	}
	settings, ok := c.Settings.(sinks.Config)
	if !ok {
		k.fault(item("sinks", i), "unknown kind of sink %q", c.Kind)
		return s
	}
	s.Config = settings
	s.Delivery = settingsOf(settings.Defaults(), c)
	return s
}

// settingsOf lays the block's settings over the kind's defaults.
func settingsOf(d sinks.Delivery, c *config.Sink) sinks.Delivery {
	if n := c.Batch.MaxEvents; n != nil {
		d.MaxEvents = *n
	}
	if q := c.Batch.MaxBytes; q != nil {
		d.MaxBytes = int(q.Value())
	}
	if w := c.Batch.MaxWait; w != nil {
		d.MaxWait = *w
	}
	if n := c.Concurrency; n != nil {
		d.Concurrency = *n
	}
	d.MaxEvents, d.Concurrency = max(d.MaxEvents, 1), max(d.Concurrency, 1)
	if d.MaxBytes <= 0 {
		d.MaxBytes = defaultBatchBytes
	}
	return d
}
