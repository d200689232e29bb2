//! Protocols that the machine is read and changed with: bytes, sockets and messages, and no word of the product.

pub mod netlink;
pub mod nft;
pub mod openflow;
pub mod ovsdb;
