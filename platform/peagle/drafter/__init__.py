"""Draft heads for a target; `drafter_cli` defines the commands.

`data` is the training text: what the target generates (`prompt_source`, `generation`, `generated_text`; `repository`
downloads a target), and the embedded model's corpus (`corpus`, `held_out_prompts`). `train` reads and checks a run
before its long part (`plan_file`, `prepare`, `readiness`, `record`). It trains `heads` with `training`, `loss` and
`partition`, on the device and in the processes of `compute`. `export` writes what vLLM loads, `pretrained` reads it
back. `evaluate` measures a head's acceptance.
"""
