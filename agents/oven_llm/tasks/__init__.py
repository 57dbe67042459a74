"""Questions over long documents with known answers, and their scores; a task is an entry point of oven.tasks."""
