package apiserver

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controller/namespace"
)

const (
	namespaceResync  = 5 * time.Minute
	namespaceWorkers = 2
)

// runNamespaceController empties deleted namespaces and lets them go, until ctx
// is done. Without it a deleted namespace would stay forever. ready is called
// when everything it needs is made.
func runNamespaceController(ctx context.Context, admin *rest.Config, ready func()) error {
	cfg := rest.CopyConfig(admin)
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	meta, err := metadata.NewForConfig(cfg)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	defer factory.Shutdown()
	controller := namespace.NewNamespaceController(ctx, client, meta,
		client.Discovery().ServerPreferredNamespacedResources,
		factory.Core().V1().Namespaces(), namespaceResync, corev1.FinalizerKubernetes)
	factory.Start(ctx.Done())
	if ctx.Err() == nil {
		ready()
	}
	controller.Run(ctx, namespaceWorkers)
	return nil
}
