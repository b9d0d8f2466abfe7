"""One replica: the server around vLLM, its statistics, and its reports to the Router."""
