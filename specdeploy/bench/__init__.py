"""The load test: metrics, prompts, schedule, driver, statistics and the document made of them."""
