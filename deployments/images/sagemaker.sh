#!/bin/sh
# The command `serve` of the image, which is what Amazon SageMaker runs.
set -eu
exec peagle sagemaker "$@"
