#!/bin/sh
# Make the image's user and its cache, the one folder that it writes beside /tmp.
# The cache belongs to group 0, which is the group of OpenShift's arbitrary user ids.
set -eu

useradd --uid 10001 --user-group --home-dir /var/cache/peagle --no-create-home --shell /usr/sbin/nologin peagle
install --directory --owner peagle --group 0 --mode 0775 /var/cache/peagle
