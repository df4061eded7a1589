"""The one client of OpenAI-compatible servers (`ramet.OpenAIClient`): engine, judge and summariser use it."""
