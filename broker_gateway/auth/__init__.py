"""Who may do what: a table of calls for each port, a principal, a policy, and one place where it is asked."""
