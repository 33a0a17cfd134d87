# syntax=docker/dockerfile:1
#
# The image of watcherd: one static binary, no shell, not root. It wants one writable
# folder, /var/lib/watcherd, for the store and for files that are delivered; relative
# paths of the configuration lead there. The rest may be read-only.
#
#   docker build --build-arg RELEASE=v0.1.0 -t watcherd .
#   docker run -v watcherd:/var/lib/watcherd -v ./config:/etc/watcherd:ro watcherd
#
# Mount the folder of the configuration, not the file: a file that is a mount of its
# own is not seen when it is replaced.

# The images that it is built with and on. For a build that can be repeated name them by digest:
# --build-arg BASE_IMAGE=gcr.io/distroless/static-debian12@sha256:...
ARG GO_IMAGE=golang:1.26-bookworm
ARG BASE_IMAGE=gcr.io/distroless/static-debian12:nonroot

# Cross-compiles, so that the compiler is not emulated for another platform.
FROM --platform=$BUILDPLATFORM $GO_IMAGE AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG TARGETOS TARGETARCH
ARG RELEASE=""
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.release=$RELEASE" -o /out/watcherd ./cmd/watcherd \
    && mkdir -m 0700 /out/data

# Certificates of the public authorities, time zones, the user nonroot; nothing else.
FROM $BASE_IMAGE
ARG BASE_IMAGE
LABEL org.opencontainers.image.base.name=$BASE_IMAGE \
      org.opencontainers.image.title="watcherd" \
      org.opencontainers.image.description="Change data capture for Kubernetes" \
      org.opencontainers.image.source="https://github.com/watcherd/watcherd" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/watcherd /usr/bin/watcherd
COPY LICENSE THIRD_PARTY_NOTICES /usr/share/doc/watcherd/
# A new volume takes over the owner of what it covers.
COPY --from=build --chown=65532:65532 /out/data /var/lib/watcherd
USER 65532:65532
WORKDIR /var/lib/watcherd
VOLUME /var/lib/watcherd
# Of admin.probes, where the configuration opens it: health and metrics.
EXPOSE 8081
ENTRYPOINT ["/usr/bin/watcherd"]
CMD ["run", "--config", "/etc/watcherd/watcherd.yaml", "--log-format", "json"]
