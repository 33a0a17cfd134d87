package route

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// ParseLabels reads a label selector. The error tells how one is written.
func ParseLabels(selector string) (labels.Selector, error) {
	s, err := labels.Parse(selector)
	if err != nil {
		return nil, fmt.Errorf("%q is no label selector; write it as for kubectl get -l, such as app=web,tier in (a, b): %w", selector, err)
	}
	return s, nil
}

// ParseFields reads a field selector. The error tells how one is written.
func ParseFields(selector string) (fields.Selector, error) {
	s, err := fields.ParseSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("%q is no field selector; write it as for kubectl get --field-selector, such as spec.nodeName=node-1: %w", selector, err)
	}
	return s, nil
}
