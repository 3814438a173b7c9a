"""Run work on the event loop: turns, tasks, barriers, deadlines."""
