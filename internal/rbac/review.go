package rbac

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reviewer asks a server what the client may do.
// SelfSubjectAccessReviewInterface of client-go implements it.
type Reviewer interface {
	Create(ctx context.Context, review *authorization.SelfSubjectAccessReview, opts metav1.CreateOptions) (*authorization.SelfSubjectAccessReview, error)
}

// concurrentReviews is how many questions are under way at a time. The client's
// rate limit applies too.
const concurrentReviews = 8

// Missing returns the needs that the server refuses, with the refused verbs alone,
// in the order given.
func Missing(ctx context.Context, reviewer Reviewer, needs []Need) ([]Need, error) {
	refused := make([][]string, len(needs))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrentReviews)
	for i := range needs {
		group.Go(func() (err error) {
			refused[i], err = refusedVerbs(ctx, reviewer, &needs[i].Rule)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var missing []Need
	for i, verbs := range refused {
		if len(verbs) > 0 {
			n := needs[i]
			n.Verbs = verbs
			missing = append(missing, n)
		}
	}
	return missing, nil
}

// refusedVerbs asks for each verb by itself.
func refusedVerbs(ctx context.Context, reviewer Reviewer, r *Rule) ([]string, error) {
	var refused []string
	for _, verb := range r.Verbs {
		answer, err := reviewer.Create(ctx, &authorization.SelfSubjectAccessReview{
			Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorization.ResourceAttributes{
				Namespace: r.Namespace, Verb: verb, Group: r.Group, Resource: r.Resource, Name: r.Name,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("ask the server about %s on %s: %w", verb, r.Resource, err)
		}
		if !answer.Status.Allowed {
			refused = append(refused, verb)
		}
	}
	return refused, nil
}
