"""From labelled text to token ids: sources, words, stop words, stems, pieces, and a generator of sentences."""
