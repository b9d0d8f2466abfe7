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
    """What was looked at for one deployment file; `deployment` is None where the file itself is wrong."""

    path: Path
    deployment: Deployment | None
    checks: tuple[Check, ...]

    @property
    def problems(self) -> tuple[ConfigError, ...]:
        """Everything wrong, each led by the file's path; empty where the deployment can be served."""
        return tuple(problem for check in self.checks for problem in check.problems)


def validate_file(path: Path) -> Report:
    """Check one deployment file, the engine arguments in it and the local checkpoints that it names.

    Never raises for a wrong file: everything wrong is in the report.
    """
    try:
        deployment = load_deployment(path)
    except ConfigError as error:
        return Report(path, None, (wrong_check("file", "fields", error),))
    looked_at = (
        *examine_arguments(deployment),
        *examine_checkpoints(deployment),
        *examine_sampling(deployment),
        *_examine_prior(deployment),
        *examine_graphs(deployment),
    )
    checks = [Check("file", "fields", "ok", deployment.name)]
    for check in looked_at:
        problems = tuple(problem.under(str(path)) for problem in check.problems)
        checks.append(Check(check.subject, check.name, check.outcome, check.detail, problems))
    return Report(path, deployment, tuple(checks))


def _examine_prior(deployment: Deployment) -> tuple[Check, ...]:
    """Tell what step times are first guessed from, where depth adapts by them."""
    if not deployment.adapts:
        return ()
    prior = cost_prior(deployment)
    if prior.stand_ins:
        return (Check("target", "cost prior", "not checked", " ".join(map(str, prior.stand_ins.values()))),)
    return (Check("target", "cost prior", "ok", prior.basis),)
