"""Draft heads, trained for a target of one's own; `drafter_cli` names the steps.

`data` is what a head learns from: what its target writes (`prompt_source`, `generation`, `generated_text`; `repository`
fetches a target), and the text of the embedded model (`corpus`, `held_out_prompts`). `train` reads and checks a run
before its long part (`plan_file`, `prepare`, `readiness`, `record`) and trains it: `heads`, by `training`, `loss` and
`partition`, on the device and in the processes of `compute`; `export` writes what vLLM loads, `pretrained` reads it
back. `evaluate` measures its acceptance.
"""
