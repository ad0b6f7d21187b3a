"""One module per figure or study of the papers: settings, run, tables and findings; no drawing."""
