"""What joins the pairing to other libraries; each room imports its own."""
