"""What is learned of a replica: acceptance, step time, prompt cost, and the forecast that they make."""
