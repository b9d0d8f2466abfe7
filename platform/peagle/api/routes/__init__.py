"""Routes beside OpenAI's."""
