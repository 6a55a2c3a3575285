"""pg-boss: Python workers and producers on the queues of a live Node pg-boss, without touching its schema.

Through an App it is an engine like any other. What only pg-boss has (throttles, debouncing, dead letter queues,
policies, cron rows, publish and subscribe) is to be had from :func:`onward.pgboss.pgboss_of`.
"""
