"""An explorable article: one page, static, in which attention can be seen to choose."""
