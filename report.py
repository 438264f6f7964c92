"""Shows what a trained model's attention does as sets grow: one page that opens anywhere, with its charts and data."""

from softmax_jax.commands.report import main

if __name__ == "__main__":
    main()
