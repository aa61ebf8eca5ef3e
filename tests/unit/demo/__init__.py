"""The demo, against our coordinator and against one that does not do what the story expects."""
