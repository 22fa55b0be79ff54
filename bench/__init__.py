"""Side-by-side measurements that anyone can repeat; see README.md. Nothing else imports this."""
