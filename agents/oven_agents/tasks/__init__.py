"""Questions over long documents with known answers, and how answers are scored; a task is an entry point of oven.tasks."""
