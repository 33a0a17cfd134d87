# Few targets, each one command. Requirements: CONTRIBUTING.md.
SHELL := /bin/bash

# Not affected by the GOFLAGS that the playground is linted with.
GOLANGCI_LINT := go run -trimpath=false github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: build test lint generate bench demo image soak playground

build: ## bin/watcherd
	go build -o bin/watcherd ./cmd/watcherd

test: playground ## all tests with the race detector, those against a real API server included
	cd playground && go test -trimpath ./...
	cd examples/customsink && go vet ./...
	cd internal/ui/web && go test -trimpath -timeout 20m ./...
	go test -race -p $$(($$(nproc) + 1)) -timeout 45m ./internal/e2e ./internal/store ./... # most of the time, tests wait; the longest begin first

lint: ## the linters, the walls between the packages included
	$(GOLANGCI_LINT) run ./...
	cd playground && GOFLAGS=-trimpath $(GOLANGCI_LINT) run -c ../.golangci.yml ./...
	cd internal/testservers/servers && GOFLAGS=-trimpath $(GOLANGCI_LINT) run -c ../../../.golangci.yml ./...
	cd internal/ui/web && $(GOLANGCI_LINT) run -c ../../../.golangci.yml ./...

generate: ## files that are made from others; CI fails if they are stale
	go generate ./...

bench: ## watcherd against its baseline; takes an hour and writes bench/RESULTS.md (-quick: minutes)
	go run ./bench/run -out bench/RESULTS.md

demo: build ## watcherd at work, on a cluster of its own or on that of KUBECONFIG
	hack/demo.sh

image: ## the container image
	docker build -t watcherd .

soak: playground ## the long forms of the tests: hours
	WATCHERD_SOAK=1 go test -race -v -count 1 -timeout 12h ./internal/e2e ./internal/history ./internal/standby ./internal/store ./internal/simulation ./pkg/dynamicfactory
	cd internal/ui/web && WATCHERD_SOAK=1 go test -trimpath -v -count 1 -timeout 6h -run TestLoad .

playground: ## the API server of the demo and the tests; builds it once, prints where
	@go run ./hack/playground
