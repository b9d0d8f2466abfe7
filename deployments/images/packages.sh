#!/bin/sh
# Install Debian or Ubuntu packages: packages.sh NAME...
# Trusts the certificates of local/ and takes the packages from APT_MIRROR, if there are any.
set -eu

find "$(dirname "$0")/local" -name '*.crt' -exec cp {} /usr/local/share/ca-certificates/ \;
if command -v update-ca-certificates >/dev/null; then update-ca-certificates; fi

if [ -n "${APT_MIRROR:-}" ]; then
    sed -i -E "s#https?://(deb.debian.org|(archive|security).ubuntu.com)#${APT_MIRROR%/}#" \
        $(find /etc/apt/sources.list /etc/apt/sources.list.d -type f 2>/dev/null)
    # The CUDA base brings a source for NVIDIA's packages, of which the image installs none.
    rm -f /etc/apt/sources.list.d/cuda*.list
fi

apt-get update
# Installed after the copy above, ca-certificates takes those certificates in too.
DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ca-certificates "$@"
rm -rf /var/lib/apt/lists/*
