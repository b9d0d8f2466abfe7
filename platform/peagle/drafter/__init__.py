"""Draft heads, trained for a target of one's own; `cli` names the steps.

What a head learns from is what its target writes: `prompt_source`, `generate`, `text`; `repository` fetches a target,
`corpus`, `prompts` and `target` are of the embedded model. `plan_file`, `prepare`, `readiness` and `record` read and
check a run before its long part. `heads` trains, by `training`, `loss` and `partition`, on the device and in the
processes of `compute`; `export` writes what vLLM loads, `pretrained` reads it back, `evaluate` measures its acceptance.
"""
