"""Who decides where rollouts fork: policies, events in order, and what is known of the group."""
