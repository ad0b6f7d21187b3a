"""The playground: a page on this computer where tokens can be moved and attention be seen to choose."""
