"""Checks deployment files on any machine: no GPU, no network, no vLLM."""

from dataclasses import dataclass
from pathlib import Path

from peagle.config import Deployment, load_deployment
from peagle.engine.checks.argument_checks import examine_arguments
from peagle.engine.checks.check import Check, wrong_check
from peagle.engine.checks.drafter_checks import examine_checkpoints
from peagle.engine.checks.graph_checks import examine_graphs
from peagle.engine.checks.sampling_checks import examine_sampling
from peagle.engine.cost_prior import cost_prior
from peagle.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Report:
    """The checks of one deployment file; `deployment` is None if the file itself is invalid."""

    path: Path
    deployment: Deployment | None
    checks: tuple[Check, ...]

    @property
    def problems(self) -> tuple[ConfigError, ...]:
        """All problems, each prefixed with the file's path; empty if the deployment can be served."""
        return tuple(problem for check in self.checks for problem in check.problems)


def validate_file(path: Path) -> Report:
    """Check a deployment file, its engine arguments and the local checkpoints that it names.

    Never raises for an invalid file: all problems are in the report.
    """
    try:
        deployment = load_deployment(path)
    except ConfigError as error:
        return Report(path, None, (wrong_check("file", "fields", error),))
    examined = (
        *examine_arguments(deployment),
        *examine_checkpoints(deployment),
        *examine_sampling(deployment),
        *_examine_prior(deployment),
        *examine_graphs(deployment),
    )
    checks = [Check("file", "fields", "ok", deployment.name)]
    for check in examined:
        problems = tuple(problem.under(str(path)) for problem in check.problems)
        checks.append(Check(check.subject, check.name, check.outcome, check.detail, problems))
    return Report(path, deployment, tuple(checks))


def _examine_prior(deployment: Deployment) -> tuple[Check, ...]:
    """Report the source of the step-time prior, if depth is adaptive."""
    if not deployment.adapts:
        return ()
    prior = cost_prior(deployment)
    if prior.stand_ins:
        return (Check("target", "cost prior", "not checked", " ".join(map(str, prior.stand_ins.values()))),)
    return (Check("target", "cost prior", "ok", prior.basis),)
