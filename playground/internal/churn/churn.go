package churn

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Options of a run.
type Options struct {
	Namespace string
	Rate      float64   // changes per second, above 0
	Cleanup   bool      // delete what was made before returning
	Report    io.Writer // a few lines for the user
}

// retryPause is how long to leave a cluster alone that answers with errors.
const retryPause = time.Second

// reachLimit is how long the first answer may take.
const reachLimit = 10 * time.Second

// cleanupLimit bounds the clean-up, which ctx's end does not stop.
const cleanupLimit = 20 * time.Second

// Run makes the sample objects and changes them until ctx is done, which is no
// error. It returns early only when the first objects cannot be made; later the
// cluster may go away and come back.
func Run(ctx context.Context, cfg *rest.Config, o Options) (err error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	if err := reach(ctx, cfg); err != nil {
		return unlessDone(ctx, err)
	}
	c := &churner{client: client, options: o, random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
	if o.Cleanup {
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
			defer cancel()
			if cleanupErr := c.cleanup(ctx); err == nil {
				err = cleanupErr
			}
		}()
	}
	if err := c.prepare(ctx); err != nil {
		return unlessDone(ctx, err)
	}
	fmt.Fprintf(o.Report, "churn: %g changes per second in namespace %s of %s\n", o.Rate, o.Namespace, cfg.Host)
	c.churn(ctx)
	fmt.Fprintf(o.Report, "churn: stopped after %d changes\n", c.changes)
	return nil
}

// reach fails early, with one line, for a cluster that doesn't answer.
func reach(ctx context.Context, cfg *rest.Config) error {
	quick := rest.CopyConfig(cfg)
	quick.Timeout = reachLimit
	client, err := discovery.NewDiscoveryClientForConfig(quick)
	if err != nil {
		return err
	}
	if _, err := client.ServerVersionWithContext(ctx); err != nil {
		return fmt.Errorf("cannot reach the cluster at %s: %w", cfg.Host, err)
	}
	return nil
}

// unlessDone is err, unless ctx's end is what it is about.
func unlessDone(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// churner is used by one goroutine.
type churner struct {
	client  dynamic.Interface
	options Options
	random  *rand.Rand
	slots   []*slot
	changes int
}

// slot is the place of one object, which comes and goes.
type slot struct {
	kind   kind
	name   string
	exists bool
}

// churn changes one object after the other.
func (c *churner) churn(ctx context.Context) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / c.options.Rate))
	defer tick.Stop()
	healthy := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := c.step(ctx, c.slots[c.random.IntN(len(c.slots))])
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			healthy = true
			c.changes++
		default:
			if healthy {
				fmt.Fprintf(c.options.Report, "churn: %v; trying on\n", err)
			}
			healthy = false
			wait(ctx, retryPause)
		}
	}
}

// deleteShare is the part of all steps on an existing object that delete it.
const deleteShare = 0.15

// step creates the slot's object, changes it or deletes it. That another program
// created or deleted it meanwhile is taken note of and no error.
func (c *churner) step(ctx context.Context, s *slot) error {
	switch {
	case !s.exists:
		err := c.create(ctx, s)
		s.exists = err == nil || apierrors.IsAlreadyExists(err)
		return ignore(err, apierrors.IsAlreadyExists)
	case c.random.Float64() < deleteShare:
		err := c.delete(ctx, s)
		s.exists = err != nil && !apierrors.IsNotFound(err)
		return ignore(err, apierrors.IsNotFound)
	default:
		err := c.change(ctx, s)
		s.exists = !apierrors.IsNotFound(err)
		return ignore(err, apierrors.IsNotFound)
	}
}

func ignore(err error, unless func(error) bool) error {
	if unless(err) {
		return nil
	}
	return err
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
