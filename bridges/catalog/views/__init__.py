"""Groups, jobs and transactions as operators see them: what a front gives the console and the command line."""
