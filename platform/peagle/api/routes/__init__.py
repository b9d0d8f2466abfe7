"""Routes in addition to OpenAI's."""
