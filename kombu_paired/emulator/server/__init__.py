"""What speaks to clients: connections, sessions and links, the management API, the emulator's own one, the port."""
