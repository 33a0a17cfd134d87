package compact

import "sync"

// typeMeta is what all objects of a type have in common.
type typeMeta struct {
	apiVersion, kind string
	labelKeys        keyTable
	dicts            *Dictionaries
}

// typeTable holds every type once. Types are few and stay.
type typeTable struct {
	dicts *Dictionaries

	mu   sync.RWMutex // guards what follows
	byID map[typeID]*typeMeta
}

type typeID struct{ apiVersion, kind string }

// of returns a type. It keeps neither argument.
func (t *typeTable) of(apiVersion, kind []byte) *typeMeta {
	t.mu.RLock()
	found := t.byID[typeID{string(apiVersion), string(kind)}]
	t.mu.RUnlock()
	if found != nil {
		return found
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	id := typeID{string(apiVersion), string(kind)}
	if t.byID[id] == nil {
		t.byID[id] = &typeMeta{apiVersion: id.apiVersion, kind: id.kind, dicts: t.dicts}
	}
	return t.byID[id]
}
