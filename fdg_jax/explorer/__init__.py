"""Pictures of schedules: a page to explore, an SVG and a trace, all made from the schedules that the engine runs."""
