"""The pages for people: every command in them is run, and every link leads somewhere."""
