//! The Open vSwitch Database Management Protocol (RFC 7047), over a Unix socket.
